//! Worms of sends from member to member.

use treecast_fabric::{Channel, RouteFinder};

use crate::group::{Group, Placement};
use crate::plan::{Worm, WormKind};
use crate::shape::Shape;
use treecast_terms::MemberId;

/// Makes worms of sends from member to member, with the routes that the fabric determines.
pub(super) struct Sender<'a, 's> {
    placement: &'s Placement,
    /// Finds routes, if the fabric determines them.
    pub(super) finder: Option<&'s mut RouteFinder<'a>>,
    pub(super) worms: Vec<Worm>,
}

impl<'a, 's> Sender<'a, 's> {
    pub(super) fn new(finder: &'s mut Option<RouteFinder<'a>>, group: &'s Group) -> Self {
        let worms = Vec::with_capacity(group.destinations().len());
        Self { placement: group.placement(), finder: finder.as_mut(), worms }
    }

    /// One copy from a member to another: inside the host where both are there, else a unicast
    /// worm.
    pub(super) fn send(&mut self, from: MemberId, to: MemberId) {
        let (source, target) = (self.placement.host_of(from), self.placement.host_of(to));
        if source == target {
            self.push(from, WormKind::Local, vec![to], Vec::new());
        } else {
            let route = self.finder.as_mut().map(|finder| finder.route(source, target));
            self.push(from, WormKind::Unicast, vec![to], route.unwrap_or_default());
        }
    }

    /// The copies of a tree whose positions are held by these members.
    pub(super) fn send_along(&mut self, shape: &Shape, members: &[MemberId]) {
        for &(from, to) in &shape.0 {
            self.send(members[from as usize], members[to as usize]);
        }
    }

    pub(super) fn push(&mut self, from: MemberId, kind: WormKind, to: Vec<MemberId>, route: Vec<Channel>) {
        self.worms.push(Worm { from, index: 0, kind, to, route });
    }
}
