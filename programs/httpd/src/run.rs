//! The threads of the server.
use crate::args::Args;
use crate::peer::Peer;
use crate::site::Site;
use anyhow::{Context, Result};
use ix_programs::socket;
use ix_programs::threads::{self, Listening, Place, pin};
use libix::event::Team;
use libix::raw::Thread;
use std::net::SocketAddr;
use std::sync::Arc;

/// Serves until killed; says `ready` once all threads listen.
pub fn run(args: &Args) -> Result<()> {
    let site = Arc::new(load(args)?);
    let place = Place::find(args.linux)?;
    let threads = place.threads(args.threads);
    let ready = || {
        let (pages, at) = (site.pages().len(), SocketAddr::new(args.addr, args.port));
        ix_sys::outln!("ready: {pages} pages on {at}, {threads} threads");
    };
    let team = Team::new(threads);
    let serve = |index, listening: &Listening| serve(args, &place, &site, index, &team, listening);
    threads::serve("ix-httpd", threads, serve, ready);
    Ok(())
}

fn load(args: &Args) -> Result<Site> {
    let mut site = Site::new(args.memory << 20);
    for &size in &args.page {
        site.add_synthetic(size)?;
    }
    if let Some(folder) = &args.folder {
        site.add_folder(folder)?;
    }
    Ok(site)
}

fn serve(
    args: &Args,
    place: &Place,
    site: &Arc<Site>,
    index: u32,
    team: &Team<Peer>,
    listening: &Listening,
) -> Result<()> {
    let at = SocketAddr::new(args.addr, args.port);
    let cannot = || format!("cannot serve on {at}");
    match place {
        Place::Ix(process) => {
            let thread = Thread::enter(process, index)?;
            let patience = args.patience();
            let server = crate::ix::server(thread, site, patience, args.max_conn, at, team);
            let mut server = server.with_context(cannot)?;
            listening.say();
            server.run()?;
        }
        Place::Linux => {
            pin(args.cpus.as_ref(), index)?;
            let listener = socket::listen(at).with_context(cannot)?;
            listening.say();
            crate::linux::serve(listener, site, args.patience(), args.max_conn, args.spin)?;
        }
    }
    Ok(())
}
