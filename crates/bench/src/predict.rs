//! Predictions beside what was measured.

use treecast_fabric::{Fabric, FabricSpec};
use treecast_model::{ModelError, Network, Way};
use treecast_node::{Offload, Transport};
use treecast_plan::{Group, MemberId, Placement, Scheme, TreeScheme};
use treecast_terms::{Bytes, Operation, Picoseconds};

use crate::broadcast::Broadcast;
use crate::report::{Report, Row};

impl Report {
    /// Puts beside each last delivery the one that the model of a network predicts: of broadcasts
    /// with one process on each host, all hosts on one switch, a scheme that is known, and a way
    /// that the network has.
    ///
    /// # Errors
    /// Those of the model.
    pub fn predict(&mut self, network: &Network) -> Result<(), ModelError> {
        for row in &mut self.rows {
            row.last_delivery_us_predicted = predicted_us(network, row)?;
        }
        Ok(())
    }

    /// The median of the errors of all predictions, relative to what was measured; none without a
    /// prediction.
    pub fn prediction_error(&self) -> Option<f64> {
        let mut errors: Vec<f64> = self.rows.iter().filter_map(Row::prediction_error).map(f64::abs).collect();
        errors.sort_by(f64::total_cmp);
        let upper = errors.get(errors.len() / 2)?;
        Some(f64::midpoint(errors[(errors.len() - 1) / 2], *upper))
    }
}

impl Row {
    /// By which part of what was measured the prediction is higher.
    pub fn prediction_error(&self) -> Option<f64> {
        let predicted = self.last_delivery_us_predicted?;
        (self.last_delivery_us_p50 > 0.0).then(|| predicted / self.last_delivery_us_p50 - 1.0)
    }

    /// The broadcast of this row as the model of a network has it, along the same tree; none where
    /// [`Report::predict`] predicts nothing.
    ///
    /// # Errors
    /// Those of the model.
    pub fn predicted_broadcast(&self, network: &Network) -> Result<Option<Broadcast>, ModelError> {
        let (Some(measured), Some(like)) = (&self.broadcast, predicted(network, self)?) else {
            return Ok(None);
        };
        let Predicted { way, scheme, fabric, group } = like;
        let deliveries = network.deliveries(&way, &fabric, &group, (&scheme, None), Bytes(self.bytes))?;
        Ok(Some(Broadcast {
            parents: measured.parents.clone(),
            root_us: None,
            delivered_us: deliveries.into_iter().flatten().map(Picoseconds::us).collect(),
            stored_us: Vec::new(),
        }))
    }
}

/// A broadcast of a row, as the model carries it out.
struct Predicted {
    way: Way,
    scheme: Scheme,
    fabric: Fabric,
    group: Group,
}

/// None where the model has none like it.
fn predicted(network: &Network, row: &Row) -> Result<Option<Predicted>, ModelError> {
    let (Ok(offload), Ok(transport)) = (row.offload.parse(), row.transport.parse()) else {
        return Ok(None);
    };
    // Where applications ask for it, user space forwards.
    let is_asked = matches!(offload, Offload::Host | Offload::Assisted);
    let engine = if is_asked && row.engine == "ebpf" { "user" } else { &row.engine };
    // While streams lose no packets, they carry everything.
    let transport = if transport == Transport::Both { Transport::Streams } else { transport };
    let way = Way { engine: engine.into(), offload, transport };
    let is_broadcast = row.operation == Operation::Broadcast.to_string();
    if !is_broadcast || row.processes > 1 || row.on_fabric.is_some() || !network.ways.contains_key(&way) {
        return Ok(None);
    }
    // By multicast the tree is only for what is lost, and Open MPI takes an algorithm of its own.
    let has_no_scheme = offload == Offload::Switch || way.is_openmpi();
    let scheme = if has_no_scheme { Ok(Scheme::tree(TreeScheme::Separate)) } else { row.scheme.parse() };
    let Ok(scheme) = scheme else { return Ok(None) };
    let fabric = Fabric::from_spec(&FabricSpec::Star(row.hosts))?;
    let others = (1..row.hosts).map(MemberId).collect();
    let group = Group::new(Placement::one_per_host(row.hosts), MemberId(0), others)?;
    Ok(Some(Predicted { way, scheme, fabric, group }))
}

fn predicted_us(network: &Network, row: &Row) -> Result<Option<f64>, ModelError> {
    let Some(Predicted { way, scheme, fabric, group }) = predicted(network, row)? else { return Ok(None) };
    let prediction = network.predict(&way, &fabric, &group, (&scheme, None), Bytes(row.bytes))?;
    Ok(Some(prediction.last_delivery.us()))
}
