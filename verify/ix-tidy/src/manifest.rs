//! As much of a `Cargo.toml` as the rules need, with line numbers.

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of the library or the program.
    Normal,
    /// Of tests, examples and benchmarks.
    Dev,
    /// Of the build script.
    Build,
}

/// A dependency of a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Name of the package that is used.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Line of the manifest, from 1.
    pub line: usize,
}

/// A package of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, `core/ix-wire`.
    pub folder: String,
    /// Its manifest, `core/ix-wire/Cargo.toml`.
    pub manifest: String,
    /// What it uses, of this tree and from elsewhere.
    pub dependencies: Vec<Dependency>,
    /// Sections of the manifest: header, its line, and its lines of the form `key = value`.
    pub sections: Vec<Section>,
}

/// A section of a manifest: header without brackets, line of the header, keys and values.
pub type Section = (String, usize, Vec<(String, String)>);

impl Package {
    /// Reads a manifest. The tree's manifests are plain: a key a line.
    pub fn parse(path: &str, text: &str) -> Package {
        let mut sections: Vec<Section> = Vec::new();
        let mut dependencies = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with('[') {
                let header = line.trim_matches(['[', ']']).to_owned();
                // `[dependencies.name]`
                if let Some((section, name)) = header.rsplit_once("dependencies.") {
                    dependencies.push(Dependency {
                        name: name.to_owned(),
                        kind: kind(section),
                        line: index + 1,
                    });
                }
                sections.push((header, index + 1, Vec::new()));
                continue;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim().trim_matches('"'));
            let Some((header, _, keys)) = sections.last_mut() else { continue };
            if let Some(section) = header.strip_suffix("dependencies") {
                let name = key.split('.').next().unwrap_or(key).to_owned();
                dependencies.push(Dependency { name, kind: kind(section), line: index + 1 });
            }
            keys.push((key.to_owned(), value.to_owned()));
        }
        let folder = path.trim_end_matches("/Cargo.toml").to_owned();
        let name = sections.iter().find(|(header, ..)| header == "package");
        let name = name.and_then(|(_, _, keys)| keys.iter().find(|(key, _)| key == "name"));
        let name = name.map_or_else(String::new, |(_, name)| name.clone());
        Package { name, folder, manifest: path.to_owned(), dependencies, sections }
    }

    /// The room that it is in: the folder at the top.
    pub fn room(&self) -> &str {
        self.folder.split('/').next().unwrap_or_default()
    }

    /// The sections with this header.
    pub fn sections(&self, header: &str) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |(name, ..)| name == header)
    }
}

fn kind(section: &str) -> Kind {
    match section {
        _ if section.ends_with("dev-") => Kind::Dev,
        _ if section.ends_with("build-") => Kind::Build,
        _ => Kind::Normal,
    }
}

/// The value of a key of a section.
pub fn value<'a>(section: &'a Section, key: &str) -> Option<&'a str> {
    section.2.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_with_its_lines() {
        let text = "[package]\nname = \"ix-a\"\n\n[[test]]\nname = \"tests\"\n\n[dependencies]\n\
            ix-b.workspace = true\n# none\nix-c = { path = \"../c\" }\n[dev-dependencies]\nix-d = \"1\"\n\
            [target.'cfg(unix)'.dependencies]\nix-e = \"1\"\n[build-dependencies.ix-f]\nversion = \"1\"\n";
        let package = Package::parse("core/ix-a/Cargo.toml", text);
        assert_eq!((package.name.as_str(), package.room()), ("ix-a", "core"));
        let found: Vec<_> =
            package.dependencies.iter().map(|d| (d.name.as_str(), d.kind, d.line)).collect();
        let expected = [
            ("ix-b", Kind::Normal, 8),
            ("ix-c", Kind::Normal, 10),
            ("ix-d", Kind::Dev, 12),
            ("ix-e", Kind::Normal, 14),
            ("ix-f", Kind::Build, 15),
        ];
        assert_eq!(found, expected);
        let tests: Vec<_> = package.sections("test").collect();
        assert_eq!(value(tests[0], "name"), Some("tests"));
    }
}
