//! What happens to each node in the protocol's scripts.

use std::path::Path;

use super::lab::Lab;
use super::pair::{Manner, Tally, replay};
use super::tabletop::script;

#[test]
fn nodes_in_scripts_do_the_same_with_the_program() {
    let Some(mut lab) = Lab::new() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/tests/scripts");
    let mut scripts: Vec<_> = folder
        .read_dir()
        .expect("the scripts are there")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    scripts.sort();
    let mut tally = Tally::default();
    for script in scripts {
        for trace in script::run(&script).into_traces() {
            for reads_in_silence in [false, true] {
                let manner = Manner { reads_in_silence, ..Manner::USUAL };
                let replayed = replay(&mut lab, &trace, manner);
                tally += replayed
                    .unwrap_or_else(|what| panic!("{}, node {}: {what}", script.display(), trace.address));
            }
        }
    }
    println!("scripts: {tally:?}");
    assert!(tally.taken * 2 > tally.came, "the program takes most packets: {tally:?}");
}
