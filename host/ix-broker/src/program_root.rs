//! A program that must be root, and must not reach its dataplane: root of a user namespace in which
//! every user has its own number, but in which the users that IX gives out do not exist. So it can
//! neither become its dataplane's user nor use root's rights on a process of that user. Where the
//! kernel asks for root's number and not for root's rights, its view of files (`view`) and a scope
//! of its signals keep it from others.
use crate::own_user::OwnUser;
use crate::view;
use ix_launch::NamespaceRoot;
use ix_problem::{Problem, Result};
use ix_sys::Error;
use ix_sys::landlock::SignalScope;
use ix_sys::limits::{self, Limit, Resource};
use ix_sys::process::USERS_OF_IX;
use ix_sys::user_namespace::UserNamespace;
use std::fs;
use std::sync::Arc;

/// The namespace of a program, and what is done for its root.
pub struct ProgramRoot {
    root: Arc<NamespaceRoot>,
    /// Its signals are kept from processes of others.
    is_scoped: bool,
}

impl ProgramRoot {
    /// Makes the namespace; `None` if dataplanes have no users of their own here: then there is
    /// nobody to keep from the program.
    pub fn make() -> Result<Option<ProgramRoot>> {
        if !OwnUser::can_be() {
            return Ok(None);
        }
        let refused = |e| {
            Problem::new("cannot keep a program that runs as root from its dataplane", e)
                .mend(mend(&read("/proc/sys/user/max_user_namespaces")))
        };
        let namespace = UserNamespace::without(&USERS_OF_IX).map_err(refused)?;
        let view = view::of_root().map_err(|e| refused(Error::new("cannot read its mounts", e)))?;
        // A kernel that has none is older, or has Landlock not among its security modules.
        let scope = SignalScope::new().ok();
        let is_scoped = scope.is_some();
        let root = NamespaceRoot::new(namespace, view, scope);
        root.try_it().map_err(refused)?;
        Ok(Some(ProgramRoot { root: Arc::new(root), is_scoped }))
    }

    /// What the program's process becomes.
    pub fn root(&self) -> Arc<NamespaceRoot> {
        Arc::clone(&self.root)
    }

    /// Whether it can signal no process of others. Otherwise it can signal every process of root,
    /// and as the owner of a descriptor (`F_SETOWN`) every process, its dataplane too.
    pub fn is_scoped(&self) -> bool {
        self.is_scoped
    }

    /// Limits that root of the machine can raise, and root of a namespace cannot.
    pub fn limits(&self) -> Vec<(Resource, Limit)> {
        let Ok(limit) = limits::get(Resource::Descriptors) else { return Vec::new() };
        let most = read("/proc/sys/fs/nr_open").trim().parse().unwrap_or(0);
        vec![(Resource::Descriptors, Limit { hard: limit.hard.max(most), ..limit })]
    }
}

/// What to do where no namespace can be made.
fn mend(max_user_namespaces: &str) -> &'static str {
    match max_user_namespaces.trim() {
        "0" => {
            "sysctl user.max_user_namespaces=1000, name another user with --user, or say --user \
             root, which gives up the wall against the program itself"
        }
        _ => {
            "name another user with --user, or say --user root, which gives up the wall against \
             the program itself"
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
