//! `ix demo`: a comparison of IX and Linux on one machine.
use crate::args::DemoArgs;
use ix_bench::lab::Lab;
use ix_bench::{Plan, all_setups, choose_device, common_notes, measure};
use ix_report::machine::Machine;
use ix_report::problem::Result;
use ix_report::report::{Report, own_command};

/// Numbers of connections that the demo measures.
const CONNECTIONS: [usize; 2] = [1, 64];

/// Makes a link, runs the echo service on IX and on Linux sockets, prints both.
pub fn main(args: &DemoArgs) -> Result<()> {
    let (device, why) = choose_device(args.device)?;
    let machine = Machine::read();
    let lab = Lab::new(device)?;
    eprintln!("ix: {}", machine.summary());
    eprintln!("ix: made a private link between two new network namespaces");
    let mut notes = common_notes(&lab);
    notes.extend(why);
    let plan = Plan::demo(&CONNECTIONS, args.seconds, args.runs);
    let rows = measure(&lab, &plan, &all_setups(&lab), &mut notes)?;
    notes.push("the link and the namespaces are removed; `ix bench` measures more".to_owned());
    let (bench, command) = ("demo".to_owned(), own_command());
    Report { bench, machine, rows, notes, command }.publish(&args.output)
}
