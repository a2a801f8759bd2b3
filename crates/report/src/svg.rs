//! A fabric as a picture.

use std::fmt::Write as _;

use treecast_fabric::{Fabric, Link, Topology, Vertex};
use treecast_page::escaped;

use crate::layout::{Layout, Point};

/// The maximum number of hosts and switches in a picture.
pub const VERTICES_DRAWN_MAX: usize = 4_000;

/// A fabric that is too large for a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{vertices} hosts and switches are too many for a picture, which has room for {VERTICES_DRAWN_MAX}")]
pub struct TooLarge {
    /// Its hosts and switches.
    pub vertices: usize,
}

/// Pixels for a unit of the layout: fewer in large pictures.
const SCALE: f64 = 30.0;
const WIDTH_MAX: f64 = 2_400.0;

const STYLE: &str = "
  text { font: 10px system-ui, sans-serif; fill: #1a1a1a; text-anchor: middle; dominant-baseline: central }
  .ground { fill: #ffffff }
  .link { stroke: #b4bac2; fill: none }
  .host { fill: #ffffff; stroke: #595959 }
  .switch { fill: #eef1f4; stroke: #595959 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ececec }
    .ground { fill: #161616 }
    .link { stroke: #59616b }
    .host { fill: #161616; stroke: #b0b0b0 }
    .switch { fill: #2a2a2a; stroke: #b0b0b0 }
  }
";

/// A fabric as an SVG picture: switches as squares, hosts as circles, a line for each pair of
/// links. Tori and meshes are grids, fabrics with levels have rows, others are circles. It follows
/// the viewer's choice of light or dark.
///
/// ```
/// use treecast_fabric::{Fabric, FabricSpec};
///
/// let fabric = Fabric::from_spec(&"fat-tree:k=4".parse::<FabricSpec>()?)?;
/// let svg = treecast_report::fabric_svg(&fabric)?;
/// assert_eq!(svg.matches("<circle").count(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TooLarge`] beyond [`VERTICES_DRAWN_MAX`] hosts and switches.
pub fn fabric_svg(fabric: &Fabric) -> Result<String, TooLarge> {
    let topology = fabric.topology();
    let vertices = (topology.host_count() + topology.switch_count()) as usize;
    if vertices > VERTICES_DRAWN_MAX {
        return Err(TooLarge { vertices });
    }
    Ok(Picture::new(topology).draw())
}

struct Picture<'a> {
    topology: &'a Topology,
    layout: Layout,
    scale: f64,
    corner: Point,
    size: Point,
}

impl<'a> Picture<'a> {
    fn new(topology: &'a Topology) -> Self {
        let layout = Layout::new(topology);
        let margin = 1.0 + layout.pitch.unwrap_or(0.0) / 2.0;
        let points = || layout.hosts.iter().chain(&layout.switches);
        let bounds = |of: fn(&Point) -> f64| {
            let low = points().map(of).fold(f64::MAX, f64::min) - margin;
            let high = points().map(of).fold(f64::MIN, f64::max) + margin;
            (low, high - low)
        };
        let ((left, width), (top, height)) = (bounds(|point| point.0), bounds(|point| point.1));
        let scale = SCALE.min(WIDTH_MAX / width);
        Self { topology, scale, corner: (left, top), size: (width * scale, height * scale), layout }
    }

    fn place(&self, point: Point) -> Point {
        ((point.0 - self.corner.0) * self.scale, (point.1 - self.corner.1) * self.scale)
    }

    fn point(&self, vertex: Vertex) -> Point {
        self.place(match vertex {
            Vertex::Host(host) => self.layout.hosts[host.index()],
            Vertex::Switch(switch) => self.layout.switches[switch.index()],
        })
    }

    fn draw(&self) -> String {
        let (width, height) = (self.size.0.ceil(), self.size.1.ceil());
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
             <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        for link in self.topology.physical_links() {
            text += &self.link(self.topology.link(link));
        }
        let radius = self.scale * 0.34;
        for switch in self.topology.switches() {
            let (x, y) = self.point(Vertex::Switch(switch));
            let name = escaped(&self.topology.switch_name(switch));
            let _ = writeln!(
                text,
                "<rect class=\"switch\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{name}</title></rect>",
                x - radius,
                y - radius,
                2.0 * radius,
                2.0 * radius
            );
            text += &self.label((x, y), &name);
        }
        for host in self.topology.hosts() {
            let (x, y) = self.point(Vertex::Host(host));
            let name = escaped(&self.topology.host_name(host));
            let _ = writeln!(
                text,
                "<circle class=\"host\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\"><title>{name}</title></circle>"
            );
            text += &self.label((x, y), &name);
        }
        text + "</svg>\n"
    }

    /// A line; in a grid a curve around what a straight one would pass over.
    fn link(&self, link: Link) -> String {
        let (a, b) = (self.point(link.from), self.point(link.to));
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let length = dx.hypot(dy);
        let pitch = self.layout.pitch.map(|pitch| pitch * self.scale).filter(|pitch| length > pitch * 1.1);
        let Some(pitch) = pitch else {
            return format!("<path class=\"link\" d=\"M{:.1},{:.1}L{:.1},{:.1}\"/>\n", a.0, a.1, b.0, b.1);
        };
        let bend = pitch * 0.9 / length;
        let control = (f64::midpoint(a.0, b.0) - dy * bend, f64::midpoint(a.1, b.1) + dx * bend);
        format!(
            "<path class=\"link\" d=\"M{:.1},{:.1}Q{:.1},{:.1} {:.1},{:.1}\"/>\n",
            a.0, a.1, control.0, control.1, b.0, b.1
        )
    }

    /// A short name, where letters can be read.
    fn label(&self, (x, y): Point, name: &str) -> String {
        const GLYPHS_MAX: usize = 4;
        const SCALE_MIN: f64 = 24.0;
        if self.scale < SCALE_MIN || name.chars().count() > GLYPHS_MAX {
            return String::new();
        }
        format!("<text x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>\n")
    }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::FabricSpec;

    use super::*;

    #[test]
    fn every_host_switch_and_link_is_drawn_inside_the_picture() {
        for spec in ["star:5", "icpp98", "torus:k=4,n=2", "mesh:k=3,n=3", "fat-tree:k=4"] {
            let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
            let topology = fabric.topology();
            let svg = fabric_svg(&fabric).unwrap();
            assert_eq!(svg.matches("<circle").count() as u32, topology.host_count());
            assert_eq!(svg.matches("<rect class=\"switch\"").count() as u32, topology.switch_count());
            assert_eq!(svg.matches("class=\"link\"").count(), topology.physical_links().count());
            let picture = Picture::new(topology);
            let all = picture.layout.hosts.iter().chain(&picture.layout.switches);
            for (x, y) in all.map(|&point| picture.place(point)) {
                assert!(x > 0.0 && x < picture.size.0 && y > 0.0 && y < picture.size.1, "{spec}");
            }
        }
    }

    #[test]
    fn a_fabric_that_is_too_large_is_refused() {
        let fabric = Fabric::from_spec(&"star:4000".parse::<FabricSpec>().unwrap()).unwrap();
        assert_eq!(fabric_svg(&fabric), Err(TooLarge { vertices: 4_001 }));
    }
}
