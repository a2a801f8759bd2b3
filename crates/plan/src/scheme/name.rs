//! Scheme names: reading, printing, and where each algorithm comes from.

use std::fmt;
use std::str::FromStr;

use treecast_fabric::Fabric;
use treecast_terms::{NameAndOptions, SpecError};

use super::{FlatScheme, Form, Local, PathPolicy, Relay, Scheme, Share, TorusScheme, TreeScheme};
use crate::group::Order;
use crate::label::Label;
use crate::shape::Lambda;

const FORMS: [(&str, Form); 2] = [("store-and-forward", Form::StoreAndForward), ("worm", Form::Worm)];
const RELAYS: [(&str, Relay); 2] = [("chain", Relay::Chain), ("separate", Relay::Separate)];
const LOCALS: [(&str, Local); 3] =
    [("separate", Local::Separate), ("binomial", Local::Binomial), ("direct", Local::Direct)];
const YES_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
const POLICIES: [(&str, PathPolicy); 2] =
    [("mdp-lg", PathPolicy::LESS_GREEDY), ("mdp-g", PathPolicy::GREEDY)];

impl Scheme {
    /// The names it is read from, each with its keys.
    pub const NAMES: [(&str, &str); 14] = [
        ("separate", ""),
        ("serial", ""),
        ("binary", ""),
        ("binomial", ""),
        ("k-binomial", "k=2"),
        ("postal", "lambda=3.5"),
        (
            "hierarchical",
            "across=TREE,inside=TREE, and the keys of each with its name before, such as inside-k=2",
        ),
        ("u-torus", ""),
        ("s-torus", "form=store-and-forward|worm"),
        ("md-torus", "form=store-and-forward|worm"),
        ("mu-torus", "r=4,form=store-and-forward|worm,relay=chain|separate"),
        ("path", "policy=mdp-lg|mdp-g,share=fair|all|N,disjoint=yes|no"),
        ("tree-worm", ""),
        ("leader", "over=SCHEME,local=separate|binomial|direct, and the keys of SCHEME"),
    ];

    /// Its name, without keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flat(flat) => flat.name(),
            Self::Leader { .. } => "leader",
        }
    }

    /// Where the algorithm comes from.
    pub fn label(self) -> Label {
        match self {
            Self::Flat(flat) | Self::Leader { over: flat, local: Local::Separate } => flat.label(),
            Self::Leader { local: Local::Binomial | Local::Direct, .. } => Label::Ours,
        }
    }

    /// Where the algorithm comes from on this fabric and order: an order may itself be
    /// reconstructed, and Md-torus is published for two dimensions.
    pub fn label_on(self, fabric: &Fabric, order: Option<Order>) -> Label {
        let is_planar = fabric.topology().grid().is_none_or(|grid| grid.dimensions() <= 2);
        let as_used = match self.flat() {
            FlatScheme::Torus(TorusScheme::Md { .. }) if !is_planar => Label::Ours,
            _ if order == Some(Order::Cco) => Label::Reconstructed,
            flat => flat.label(),
        };
        self.label().max(as_used)
    }
}

impl FlatScheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Tree(tree) => tree.name(),
            Self::Hierarchical { .. } => "hierarchical",
            Self::Torus(torus) => torus.name(),
            Self::Path(_) => "path",
            Self::TreeWorm => "tree-worm",
        }
    }

    const fn label(self) -> Label {
        match self {
            Self::Tree(_) | Self::TreeWorm => Label::Published,
            Self::Hierarchical { .. } => Label::Ours,
            Self::Torus(torus) => torus.label(),
            Self::Path(_) => Label::Reconstructed,
        }
    }
}

impl TreeScheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Separate => "separate",
            Self::Serial => "serial",
            Self::Binary => "binary",
            Self::Binomial => "binomial",
            Self::KBinomial { .. } => "k-binomial",
            Self::Postal { .. } => "postal",
        }
    }
}

impl TorusScheme {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::U => "u-torus",
            Self::S { .. } => "s-torus",
            Self::Md { .. } => "md-torus",
            Self::Mu { .. } => "mu-torus",
        }
    }

    const fn label(self) -> Label {
        match self {
            Self::U | Self::S { .. } | Self::Mu { .. } => Label::Reconstructed,
            Self::Md { .. } => Label::Published,
        }
    }
}

impl FromStr for Scheme {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec: NameAndOptions = text.parse()?;
        if spec.name() != "leader" {
            return FlatScheme::read(&spec).map(Self::Flat);
        }
        let over = spec.value("over", "")?.unwrap_or_else(|| String::from("binomial"));
        let (mine, inner) = spec.split(&["over", "local"], &over);
        if over == "leader" {
            return Err(bad(&mine, "over", "any scheme but leader"));
        }
        let local = one_of(&mine, "local", &LOCALS)?.unwrap_or_default();
        Ok(Self::Leader { over: FlatScheme::read(&inner)?, local })
    }
}

impl FlatScheme {
    fn read_hierarchical(spec: &NameAndOptions) -> Result<Self, SpecError> {
        spec.only(&["across", "inside", "across-k", "inside-k", "across-lambda", "inside-lambda"])?;
        let (across, inside) =
            (TreeScheme::read_part(spec, "across")?, TreeScheme::read_part(spec, "inside")?);
        Ok(Self::Hierarchical { across, inside })
    }

    fn read(spec: &NameAndOptions) -> Result<Self, SpecError> {
        if let Some(tree) = TreeScheme::read(spec)? {
            return Ok(Self::Tree(tree));
        }
        let torus = |keys: &[&str], torus| spec.only(keys).map(|()| Self::Torus(torus));
        match spec.name() {
            "hierarchical" => Self::read_hierarchical(spec),
            "u-torus" => torus(&[], TorusScheme::U),
            "s-torus" => torus(&["form"], TorusScheme::S { form: form(spec)? }),
            "md-torus" => torus(&["form"], TorusScheme::Md { form: form(spec)? }),
            "mu-torus" => {
                let r = at_least(spec, "r", 2)?.unwrap_or(4);
                let relay = one_of(spec, "relay", &RELAYS)?.unwrap_or_default();
                torus(&["r", "form", "relay"], TorusScheme::Mu { r, form: form(spec)?, relay })
            }
            "path" => {
                spec.only(&["policy", "share", "disjoint"])?;
                PathPolicy::read(spec).map(Self::Path)
            }
            "tree-worm" => spec.only(&[]).map(|()| Self::TreeWorm),
            other => Err(SpecError::UnknownName {
                what: "scheme",
                given: other.into(),
                known: Scheme::NAMES.map(|(name, _)| name.to_string()).to_vec(),
            }),
        }
    }
}

impl TreeScheme {
    /// The names it is read from, for messages.
    const EXPECTED: &'static str = "one of separate, serial, binary, binomial, k-binomial, postal";

    /// A tree; `None` for another name.
    fn read(spec: &NameAndOptions) -> Result<Option<Self>, SpecError> {
        let (keys, tree): (&[&str], Self) = match spec.name() {
            "separate" => (&[], Self::Separate),
            "serial" => (&[], Self::Serial),
            "binary" => (&[], Self::Binary),
            "binomial" => (&[], Self::Binomial),
            "k-binomial" => (&["k"], Self::KBinomial { k: at_least(spec, "k", 1)? }),
            "postal" => (&["lambda"], Self::Postal { lambda: lambda(spec)? }),
            _ => return Ok(None),
        };
        spec.only(keys).map(|()| Some(tree))
    }

    /// The tree that a key of another scheme names; the keys of the tree are prefixed with the name
    /// of that key. Binomial by default.
    fn read_part(spec: &NameAndOptions, part: &'static str) -> Result<Self, SpecError> {
        let name = spec.value::<String>(part, Self::EXPECTED)?.unwrap_or_else(|| String::from("binomial"));
        let tree: NameAndOptions = name.parse().map_err(|_| bad(spec, part, Self::EXPECTED))?;
        let prefix = format!("{part}-");
        let keys = spec
            .options()
            .filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value.unwrap_or_default())));
        let tree = keys.fold(tree, |tree, (key, value)| tree.with(key, value));
        let tree = Self::read(&tree).map_err(|error| in_part(error, part))?;
        tree.ok_or_else(|| bad(spec, part, Self::EXPECTED))
    }
}

impl PathPolicy {
    fn read(spec: &NameAndOptions) -> Result<Self, SpecError> {
        let base = one_of(spec, "policy", &POLICIES)?.unwrap_or(Self::LESS_GREEDY);
        let share = match spec.value::<String>("share", "")?.as_deref() {
            None => base.share,
            Some("fair") => Share::Fair,
            Some("all") => Share::All,
            Some(_) => Share::AtMost(at_least(spec, "share", 1)?.unwrap_or(1)),
        };
        let disjoint = one_of(spec, "disjoint", &YES_NO)?.unwrap_or(base.disjoint);
        Ok(Self { share, disjoint })
    }
}

/// The error of a part with the keys that the user has written.
fn in_part(error: SpecError, part: &str) -> SpecError {
    let written = |key: String| format!("{part}-{key}");
    match error {
        SpecError::BadValue { key, value, expected } => {
            SpecError::BadValue { key: written(key), value, expected }
        }
        SpecError::UnknownKey { name, given, known } => SpecError::UnknownKey {
            name: format!("{part}={name}"),
            given: written(given),
            known: known.into_iter().map(written).collect(),
        },
        other => other,
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

fn form(spec: &NameAndOptions) -> Result<Form, SpecError> {
    Ok(one_of(spec, "form", &FORMS)?.unwrap_or_default())
}

fn lambda(spec: &NameAndOptions) -> Result<Option<Lambda>, SpecError> {
    const EXPECTED: &str = "a number from 1 to 1000000";
    let Some(lambda) = spec.value("lambda", EXPECTED)? else { return Ok(None) };
    Lambda::of(lambda).map(Some).ok_or_else(|| bad(spec, "lambda", EXPECTED))
}

impl fmt::Display for Scheme {
    /// The text it is read from; keys that have their default value are left out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = match *self {
            Self::Flat(flat) => flat.options(),
            Self::Leader { over, local } => {
                let mut options = vec![format!("over={}", over.name())];
                options.extend(over.options());
                options.extend(unless_default("local", &LOCALS, local));
                options
            }
        };
        formatter.write_str(self.name())?;
        if !options.is_empty() {
            write!(formatter, ":{}", options.join(","))?;
        }
        Ok(())
    }
}

impl FlatScheme {
    fn options(self) -> Vec<String> {
        match self {
            Self::Tree(tree) => tree.option().into_iter().collect(),
            Self::Hierarchical { across, inside } => {
                [across.as_part("across"), inside.as_part("inside")].concat()
            }
            Self::Torus(torus) => torus.options(),
            Self::Path(policy) => policy.options(),
            Self::TreeWorm => Vec::new(),
        }
    }
}

impl TreeScheme {
    fn option(self) -> Option<String> {
        match self {
            Self::Separate | Self::Serial | Self::Binary | Self::Binomial => None,
            Self::KBinomial { k } => k.map(|k| format!("k={k}")),
            Self::Postal { lambda } => lambda.map(|lambda| format!("lambda={lambda}")),
        }
    }

    /// The keys of another scheme that name this tree, unless it is the default.
    fn as_part(self, part: &str) -> Vec<String> {
        if self == Self::Binomial {
            return Vec::new();
        }
        let keys = self.option().into_iter().map(|option| format!("{part}-{option}"));
        std::iter::once(format!("{part}={}", self.name())).chain(keys).collect()
    }
}

impl TorusScheme {
    fn options(self) -> Vec<String> {
        match self {
            Self::U => Vec::new(),
            Self::S { form } | Self::Md { form } => {
                unless_default("form", &FORMS, form).into_iter().collect()
            }
            Self::Mu { r, form, relay } => {
                let others = [unless_default("form", &FORMS, form), unless_default("relay", &RELAYS, relay)];
                [Some(format!("r={r}"))].into_iter().chain(others).flatten().collect()
            }
        }
    }
}

/// A key with its value, unless that is the default.
fn unless_default<T: Copy + Default + PartialEq>(
    key: &str,
    choices: &[(&'static str, T)],
    choice: T,
) -> Option<String> {
    (choice != T::default()).then(|| format!("{key}={}", name_of(choices, &choice)))
}

impl PathPolicy {
    /// The nearest published policy, and what differs from it.
    fn options(self) -> Vec<String> {
        let base = if self.disjoint { Self::LESS_GREEDY } else { Self::GREEDY };
        let mut options = vec![format!("policy={}", name_of(&POLICIES, &base))];
        if self.share != base.share {
            options.push(match self.share {
                Share::All => "share=all".into(),
                Share::Fair => "share=fair".into(),
                Share::AtMost(most) => format!("share={most}"),
            });
        }
        options
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
            "hierarchical",
            "hierarchical:across=postal,across-lambda=8,inside=k-binomial,inside-k=2",
            "hierarchical:inside=serial",
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
            "leader:over=hierarchical,across=serial,inside=serial,local=binomial",
        ] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!(
            "path:share=all,disjoint=no".parse(),
            Ok(Scheme::Flat(FlatScheme::Path(PathPolicy::GREEDY)))
        );
        for (name, _) in Scheme::NAMES {
            assert_eq!(name.parse::<Scheme>().unwrap().name(), name);
        }
    }

    #[test]
    fn mistyped_schemes_suggest_the_nearest_names() {
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
            "unknown scheme '': known are separate, serial, binary, binomial, k-binomial, postal, hierarchical, \
             u-torus, s-torus, md-torus, mu-torus, path, tree-worm, leader"
        );
        assert_eq!(
            error("hierarchical:across=path"),
            "invalid value across=path: expected one of separate, serial, binary, binomial, k-binomial, postal"
        );
        for part in ["across", "inside"] {
            assert_eq!(
                error(&format!("hierarchical:{part}")),
                format!(
                    "invalid value {part}=: expected one of separate, serial, binary, binomial, k-binomial, postal"
                )
            );
        }
        assert_eq!(error("hierarchical:inside-k=2"), "inside=binomial has no key 'inside-k': it takes none");
        assert_eq!(
            error("hierarchical:across=k-binomial,across-lambda=3"),
            "across=k-binomial has no key 'across-lambda': did you mean across-k?"
        );
        assert_eq!(
            error("hierarchical:across=postal,across-lambda=0"),
            "invalid value across-lambda=0: expected a number from 1 to 1000000"
        );
        assert_eq!(
            error("leader:over=hierarchical,inside=k-binomial,inside-k"),
            "invalid value inside-k=: expected a whole number from 1"
        );
        assert!(error("hierarchical:k=2").starts_with("hierarchical has no key 'k': "));
        assert_eq!(error("leader:over=binomial,k=2"), "binomial has no key 'k': it takes none");
    }
}
