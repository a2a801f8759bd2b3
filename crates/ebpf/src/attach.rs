//! temporary
use crate::{EbpfError, Program};
use std::net::SocketAddr;
/// x
#[derive(Debug, Clone)]
pub struct Interface {
    /// x
    pub name: String,
    /// x
    pub index: u32,
    /// x
    pub mtu_bytes: u32,
}
/// x
pub fn interfaces_for(bind: SocketAddr) -> Result<Vec<Interface>, EbpfError> {
    let out = std::process::Command::new("ip").args(["-o", "addr"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).to_string();
    let mut all = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let index = words.next().unwrap().trim_end_matches(':').parse().unwrap();
        let name = words.next().unwrap().split('@').next().unwrap().to_owned();
        words.next();
        let address = words.next().unwrap().split('/').next().unwrap();
        if address == bind.ip().to_string()
            || (bind.ip().is_unspecified() && name != "lo")
            || (bind.ip().is_loopback() && name == "lo")
        {
            all.push(Interface { name, index, mtu_bytes: 1500 });
        }
    }
    all.dedup_by_key(|i| i.index);
    Ok(all)
}
impl Program {
    /// x
    pub fn attach(&mut self, interfaces: &[Interface]) -> Result<(), EbpfError> {
        for interface in interfaces {
            self.classifier("treecast_ingress")
                .attach(&interface.name, aya::programs::TcAttachType::Ingress)
                .unwrap();
            self.classifier("treecast_egress")
                .attach(&interface.name, aya::programs::TcAttachType::Egress)
                .unwrap();
        }
        Ok(())
    }
}
