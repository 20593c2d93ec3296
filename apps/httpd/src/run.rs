//! Threads: who serves where.
use crate::args::Args;
use crate::site::Site;
use anyhow::{Context, Result, anyhow};
use ix_apps::{cpu, socket};
use libix::raw::{Process, Thread};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Where the threads run.
enum Place {
    Ix(Process),
    Linux,
}

/// Serves until killed; says `ready` once all threads listen.
pub fn run(args: &Args) -> Result<()> {
    let site = Arc::new(load(args)?);
    let place = if args.linux {
        socket::raise_descriptor_limit().context("cannot raise the limit of open files")?;
        Place::Linux
    } else {
        let found = Process::find();
        Place::Ix(found.map_err(|error| anyhow!("{error}; or use Linux sockets by --linux"))?)
    };
    let threads = args.threads.unwrap_or(match &place {
        Place::Ix(process) => process.threads(),
        Place::Linux => 1,
    });
    let (news, hear) = channel();
    thread::scope(|scope| {
        for index in 0..threads {
            let (news, site, place) = (news.clone(), &site, &place);
            scope.spawn(move || {
                let served = serve(args, place, site, index, &news);
                // The receiver lives until all threads have ended.
                let _ = news.send(served.and(Err(anyhow!("thread {index} ended"))));
            });
        }
        let mut listening = 0;
        for event in hear.iter().take(threads as usize + 1) {
            match event {
                Ok(()) => listening += 1,
                // The other threads serve for ever: no use in waiting for them.
                Err(error) => exit(&error),
            }
            if listening == threads {
                let (pages, at) = (site.pages().len(), SocketAddr::new(args.addr, args.port));
                println!("ready: {pages} pages on {at}, {threads} threads");
            }
        }
        Ok(())
    })
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
    news: &Sender<Result<()>>,
) -> Result<()> {
    let at = SocketAddr::new(args.addr, args.port);
    let cannot = || format!("cannot serve on {at}");
    match place {
        Place::Ix(process) => {
            let thread = Thread::enter(process, index)?;
            let patience = args.patience();
            let server = crate::ix::server(thread, site, patience, args.max_conn, at);
            let mut server = server.with_context(cannot)?;
            news.send(Ok(()))?;
            server.run()?;
        }
        Place::Linux => {
            if let Some(cpus) = &args.cpus {
                let cpu = cpus.0[index as usize % cpus.0.len()];
                cpu::pin(cpu).with_context(|| format!("cannot pin to CPU {cpu}"))?;
            }
            let listener = socket::listen(at).with_context(cannot)?;
            news.send(Ok(()))?;
            crate::linux::serve(listener, site, args.patience(), args.max_conn, args.spin)?;
        }
    }
    Ok(())
}

/// Ends the program although other threads still serve.
fn exit(error: &anyhow::Error) -> ! {
    eprintln!("ix-httpd: {error:#}");
    std::process::exit(1);
}
