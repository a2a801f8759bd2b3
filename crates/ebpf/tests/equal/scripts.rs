//! The nodes of the protocol's scripts, replayed with the program.

use std::path::Path;

use treecast_world::run_script;

use super::lab::Lab;
use super::pair::{Behaviour, Counts, replay};

#[test]
fn nodes_of_scripts_behave_the_same_with_the_program() {
    let Some(mut lab) = Lab::new() else { return };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../world/tests/scripts");
    let mut scripts: Vec<_> = directory
        .read_dir()
        .expect("the scripts exist")
        .map(|entry| entry.expect("the directory is readable").path())
        .collect();
    scripts.sort();
    let mut counts = Counts::default();
    for script in scripts {
        for trace in run_script(&script).expect("the output is the one in the script") {
            for reads_silently in [false, true] {
                let behaviour = Behaviour { reads_silently, ..Behaviour::DEFAULT };
                let replayed = replay(&mut lab, &trace, behaviour);
                counts += replayed
                    .unwrap_or_else(|what| panic!("{}, node {}: {what}", script.display(), trace.address));
            }
        }
    }
    println!("scripts: {counts:?}");
    assert!(counts.handled * 3 > counts.received, "the program handles many packets: {counts:?}");
}
