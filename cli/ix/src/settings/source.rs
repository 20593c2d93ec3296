//! Where a setting was written: messages name the flag or the key that the user typed.
use crate::args::RunArgs;
use std::fmt::Display;

/// The settings that flags gave; all others stand in the file, or are defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    nic: bool,
    /// No device was named: it is that of Linux's default route.
    is_usual: bool,
    addr: bool,
    gateway: bool,
    cpus: Option<String>,
    file: Option<String>,
}

impl Source {
    /// That of a command line.
    pub fn of(args: &RunArgs) -> Source {
        Source {
            nic: !args.nic.is_empty(),
            is_usual: false,
            addr: args.addr.is_some(),
            gateway: args.gateway.is_some(),
            cpus: args.cpus.clone(),
            file: args.config.as_ref().map(|path| path.display().to_string()),
        }
    }

    /// The device is that of Linux's default route, because none was named.
    pub fn has_usual_device(&mut self) {
        self.is_usual = true;
    }

    /// A device, as it was typed.
    pub fn device(&self, text: &str) -> String {
        match self {
            Source { is_usual: true, .. } => format!("{text}, the interface of the default route"),
            Source { nic: true, .. } => format!("`--nic {text}`"),
            _ => self.key("devices", text),
        }
    }

    /// An address of the dataplane with its prefix length, as it was typed.
    pub fn addr(&self, network: &dyn Display) -> String {
        match self.addr {
            true => format!("`--addr {network}`"),
            false => self.key("host_addr", network),
        }
    }

    /// A gateway, as it was typed.
    pub fn gateway(&self, address: &dyn Display) -> String {
        match self.gateway {
            true => format!("`--gateway {address}`"),
            false => self.key("gateway_addr", address),
        }
    }

    /// The configuration file.
    pub fn file(&self) -> &str {
        self.file.as_deref().unwrap_or("the configuration")
    }

    /// A hardware thread, with the list that it was typed in.
    pub fn cpu(&self, cpu: usize) -> String {
        match (&self.cpus, &self.file) {
            (Some(list), _) => format!("hardware thread {cpu} of `--cpus {list}`"),
            (None, Some(file)) => format!("hardware thread {cpu} of `cpu` in {file}"),
            (None, None) => format!("hardware thread {cpu}"),
        }
    }

    /// A key of the file with its value.
    fn key(&self, key: &str, value: impl Display) -> String {
        let place = self.file.as_ref().map_or(String::new(), |file| format!(" in {file}"));
        format!("`{key} = \"{value}\"`{place}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_as_the_user_typed_it_or_as_it_was_found() {
        let of_file = Source { file: Some("ix.toml".to_owned()), ..Source::default() };
        assert_eq!(of_file.device("eth0"), "`devices = \"eth0\"` in ix.toml");
        let flag = Source { nic: true, ..of_file.clone() };
        assert_eq!(flag.device("eth0,mtu=1500"), "`--nic eth0,mtu=1500`");
        let mut nobody = Source::default();
        nobody.has_usual_device();
        assert_eq!(nobody.device("eth0"), "eth0, the interface of the default route");
    }
}
