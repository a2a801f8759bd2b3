//! Scheme names: reading, printing, and where each algorithm comes from.

use std::fmt;
use std::str::FromStr;

use treecast_fabric::Fabric;
use treecast_terms::{NameAndOptions, SpecError};

use super::{Form, Local, PathPolicy, Relay, Scheme, Share};
use crate::shape::Lambda;
use crate::{Label, Order};

const FORMS: [(&str, Form); 2] = [("store-and-forward", Form::StoreAndForward), ("worm", Form::Worm)];
const RELAYS: [(&str, Relay); 2] = [("chain", Relay::Chain), ("separate", Relay::Separate)];
const LOCALS: [(&str, Local); 3] =
    [("separate", Local::Separate), ("binomial", Local::Binomial), ("direct", Local::Direct)];
const YES_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
const POLICIES: [(&str, PathPolicy); 2] =
    [("mdp-lg", PathPolicy::LESS_GREEDY), ("mdp-g", PathPolicy::GREEDY)];

impl Scheme {
    /// The names it is read from, each with its keys.
    pub const NAMES: [(&str, &str); 13] = [
        ("separate", ""),
        ("serial", ""),
        ("binary", ""),
        ("binomial", ""),
        ("k-binomial", "k=2"),
        ("postal", "lambda=3.5"),
        ("u-torus", ""),
        ("s-torus", "form=store-and-forward|worm"),
        ("md-torus", "form=store-and-forward|worm"),
        ("mu-torus", "r=4,form=store-and-forward|worm,relay=chain|separate"),
        ("path", "policy=mdp-lg|mdp-g,share=fair|all|N,disjoint=yes|no"),
        ("tree-worm", ""),
        ("leader", "over=SCHEME,local=separate|binomial|direct, and the keys of SCHEME"),
    ];

    /// Its name, without keys.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Separate => "separate",
            Self::Serial => "serial",
            Self::Binary => "binary",
            Self::Binomial => "binomial",
            Self::KBinomial { .. } => "k-binomial",
            Self::Postal { .. } => "postal",
            Self::UTorus => "u-torus",
            Self::STorus { .. } => "s-torus",
            Self::MdTorus { .. } => "md-torus",
            Self::MuTorus { .. } => "mu-torus",
            Self::Path(_) => "path",
            Self::TreeWorm => "tree-worm",
            Self::Leader { .. } => "leader",
        }
    }

    /// Where the algorithm comes from.
    pub fn label(&self) -> Label {
        match self {
            Self::UTorus | Self::STorus { .. } | Self::MuTorus { .. } | Self::Path(_) => Label::Reconstructed,
            Self::Leader { local: Local::Separate, over } => over.label(),
            Self::Leader { .. } => Label::Ours,
            _ => Label::Published,
        }
    }

    /// Where the algorithm comes from as it is used: an order may be reconstructed itself, and Md-torus is published in
    /// two dimensions.
    pub fn label_on(&self, fabric: &Fabric, order: Option<Order>) -> Label {
        let planar = fabric.topology().grid().is_none_or(|grid| grid.dimensions() <= 2);
        match (self, order) {
            (Self::Leader { over, .. }, _) => self.label().max(over.label_on(fabric, order)),
            (Self::MdTorus { .. }, _) if !planar => Label::Ours,
            (_, Some(Order::Cco)) => self.label().max(Label::Reconstructed),
            _ => self.label(),
        }
    }

    /// Whether it builds a tree over an order of the destinations, which can then be chosen.
    pub fn takes_order(&self) -> bool {
        match self {
            Self::Separate
            | Self::Serial
            | Self::Binary
            | Self::Binomial
            | Self::KBinomial { .. }
            | Self::Postal { .. } => true,
            Self::Leader { over, .. } => over.takes_order(),
            _ => false,
        }
    }
}

impl FromStr for Scheme {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        read(text.parse()?)
    }
}

fn read(spec: NameAndOptions) -> Result<Scheme, SpecError> {
    let plain = |scheme| spec.only(&[]).map(|()| scheme);
    match spec.name() {
        "separate" => plain(Scheme::Separate),
        "serial" => plain(Scheme::Serial),
        "binary" => plain(Scheme::Binary),
        "binomial" => plain(Scheme::Binomial),
        "u-torus" => plain(Scheme::UTorus),
        "tree-worm" => plain(Scheme::TreeWorm),
        "k-binomial" => {
            spec.only(&["k"])?;
            Ok(Scheme::KBinomial { k: at_least(&spec, "k", 1)? })
        }
        "postal" => {
            spec.only(&["lambda"])?;
            Ok(Scheme::Postal { lambda: lambda(&spec)? })
        }
        "s-torus" => {
            spec.only(&["form"])?;
            Ok(Scheme::STorus { form: one_of(&spec, "form", &FORMS)?.unwrap_or_default() })
        }
        "md-torus" => {
            spec.only(&["form"])?;
            Ok(Scheme::MdTorus { form: one_of(&spec, "form", &FORMS)?.unwrap_or_default() })
        }
        "mu-torus" => {
            spec.only(&["r", "form", "relay"])?;
            Ok(Scheme::MuTorus {
                r: at_least(&spec, "r", 2)?.unwrap_or(4),
                form: one_of(&spec, "form", &FORMS)?.unwrap_or_default(),
                relay: one_of(&spec, "relay", &RELAYS)?.unwrap_or_default(),
            })
        }
        "path" => {
            spec.only(&["policy", "share", "disjoint"])?;
            let base = one_of(&spec, "policy", &POLICIES)?.unwrap_or(PathPolicy::LESS_GREEDY);
            let share = match spec.value::<String>("share", "")?.as_deref() {
                None => base.share,
                Some("fair") => Share::Fair,
                Some("all") => Share::All,
                Some(_) => Share::AtMost(at_least(&spec, "share", 1)?.unwrap_or(1)),
            };
            let disjoint = one_of(&spec, "disjoint", &YES_NO)?.unwrap_or(base.disjoint);
            Ok(Scheme::Path(PathPolicy { share, disjoint }))
        }
        "leader" => {
            let over = spec.value("over", "")?.unwrap_or_else(|| String::from("binomial"));
            let (mine, inner) = spec.split(&["over", "local"], &over);
            if over == "leader" {
                return Err(bad(&mine, "over", "any scheme but leader"));
            }
            let local = one_of(&mine, "local", &LOCALS)?.unwrap_or_default();
            Ok(Scheme::Leader { over: Box::new(read(inner)?), local })
        }
        other => Err(SpecError::UnknownName {
            what: "scheme",
            given: other.into(),
            known: Scheme::NAMES.map(|(name, _)| name.to_string()).to_vec(),
        }),
    }
}

fn bad(spec: &NameAndOptions, key: &str, expected: &str) -> SpecError {
    let value = spec.get(key).unwrap_or_default().into();
    SpecError::BadValue { key: key.into(), value, expected: expected.into() }
}

fn at_least(spec: &NameAndOptions, key: &'static str, low: u32) -> Result<Option<u32>, SpecError> {
    let expected = format!("a whole number from {low}");
    match spec.value(key, &expected)? {
        Some(value) if value < low => Err(bad(spec, key, &expected)),
        value => Ok(value),
    }
}

fn one_of<T: Copy>(spec: &NameAndOptions, key: &str, choices: &[(&str, T)]) -> Result<Option<T>, SpecError> {
    let Some(value) = spec.value::<String>(key, "")? else { return Ok(None) };
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let found = choices.iter().find(|(name, _)| *name == value);
    found
        .map(|&(_, choice)| Some(choice))
        .ok_or_else(|| bad(spec, key, &format!("one of {}", names.join(", "))))
}

fn name_of<T: PartialEq>(choices: &[(&'static str, T)], choice: &T) -> &'static str {
    choices.iter().find(|(_, known)| known == choice).map_or("", |(name, _)| name)
}

fn lambda(spec: &NameAndOptions) -> Result<Option<Lambda>, SpecError> {
    const EXPECTED: &str = "a number from 1 to 1000000";
    match spec.value::<f64>("lambda", EXPECTED)? {
        Some(lambda) if !(1.0..=1e6).contains(&lambda) => Err(bad(spec, "lambda", EXPECTED)),
        lambda => Ok(lambda.map(|lambda| Lambda((lambda * 1000.0).round() as u32))),
    }
}

impl fmt::Display for Scheme {
    /// The text it is read from; keys that have their default value are left out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options: Vec<String> = Vec::new();
        let mut name = self.name();
        self.options(&mut options);
        if let Self::Leader { .. } = self {
            name = "leader";
        }
        if options.is_empty() {
            formatter.write_str(name)
        } else {
            write!(formatter, "{name}:{}", options.join(","))
        }
    }
}

impl Scheme {
    fn options(&self, options: &mut Vec<String>) {
        let form = |form: &Form| format!("form={}", name_of(&FORMS, form));
        match self {
            Self::KBinomial { k: Some(k) } => options.push(format!("k={k}")),
            Self::Postal { lambda: Some(lambda) } => {
                options.push(format!("lambda={}", f64::from(lambda.0) / 1000.0));
            }
            Self::STorus { form: chosen } | Self::MdTorus { form: chosen } if *chosen != Form::default() => {
                options.push(form(chosen));
            }
            Self::MuTorus { r, form: chosen, relay } => {
                options.push(format!("r={r}"));
                if *chosen != Form::default() {
                    options.push(form(chosen));
                }
                if *relay != Relay::default() {
                    options.push(format!("relay={}", name_of(&RELAYS, relay)));
                }
            }
            Self::Path(policy) => path_options(*policy, options),
            Self::Leader { over, local } => {
                options.push(format!("over={}", over.name()));
                over.options(options);
                if *local != Local::default() {
                    options.push(format!("local={}", name_of(&LOCALS, local)));
                }
            }
            _ => {}
        }
    }
}

/// The published policy that is nearest, and what differs from it.
fn path_options(policy: PathPolicy, options: &mut Vec<String>) {
    let base = if policy.disjoint { PathPolicy::LESS_GREEDY } else { PathPolicy::GREEDY };
    options.push(format!("policy={}", name_of(&POLICIES, &base)));
    if policy.share != base.share {
        options.push(match policy.share {
            Share::All => "share=all".into(),
            Share::Fair => "share=fair".into(),
            Share::AtMost(most) => format!("share={most}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_reads_back_as_it_prints() {
        for text in [
            "separate",
            "serial",
            "binary",
            "binomial",
            "k-binomial",
            "k-binomial:k=2",
            "postal",
            "postal:lambda=3.5",
            "u-torus",
            "s-torus",
            "s-torus:form=worm",
            "md-torus:form=worm",
            "mu-torus:r=4",
            "mu-torus:r=8,form=worm,relay=separate",
            "path:policy=mdp-lg",
            "path:policy=mdp-g",
            "path:policy=mdp-lg,share=3",
            "path:policy=mdp-g,share=fair",
            "tree-worm",
            "leader:over=binomial",
            "leader:over=k-binomial,k=2,local=direct",
        ] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!("path:share=all,disjoint=no".parse(), Ok(Scheme::Path(PathPolicy::GREEDY)));
        for (name, _) in Scheme::NAMES {
            assert_eq!(name.parse::<Scheme>().unwrap().name(), name);
        }
    }

    #[test]
    fn what_is_mistyped_names_what_is_near() {
        let error = |text: &str| text.parse::<Scheme>().unwrap_err().to_string();
        assert_eq!(error("binomal"), "unknown scheme 'binomal': did you mean binomial, k-binomial, binary?");
        assert_eq!(error("k-binomial:n=2"), "k-binomial has no key 'n': known are k");
        assert_eq!(error("k-binomial:k=0"), "invalid value k=0: expected a whole number from 1");
        assert_eq!(
            error("postal:lambda=0.5"),
            "invalid value lambda=0.5: expected a number from 1 to 1000000"
        );
        assert_eq!(
            error("postal:lambda=nan"),
            "invalid value lambda=nan: expected a number from 1 to 1000000"
        );
        assert_eq!(
            error("s-torus:form=snake"),
            "invalid value form=snake: expected one of store-and-forward, worm"
        );
        assert_eq!(error("leader:over=leader"), "invalid value over=leader: expected any scheme but leader");
        assert_eq!(error("path:share"), "invalid value share=: expected a whole number from 1");
        assert_eq!(
            error("leader:over"),
            "unknown scheme '': known are separate, serial, binary, binomial, k-binomial, postal, u-torus, s-torus, \
             md-torus, mu-torus, path, tree-worm, leader"
        );
        assert_eq!(error("leader:over=binomial,k=2"), "binomial has no key 'k': it takes none");
    }
}
