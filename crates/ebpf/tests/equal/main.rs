//! The program is equivalent to the protocol: a node with the program and a node with the protocol
//! alone get the same inputs; they must send the same packets and end in the same state.

mod acts;
mod batches;
mod codes;
mod cores;
mod frame;
mod lab;
mod pair;
mod random;
mod scripts;
mod session;
mod stage;
mod time;
mod worlds;
