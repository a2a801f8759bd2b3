//! Output files can be read back, are written atomically, and do not depend on the number of
//! threads.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");

fn treecast(place: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.current_dir(place);
    command
}

fn run(place: &Path, line: &str) -> Output {
    treecast(place).args(line.split_whitespace()).output().unwrap()
}

/// The output of a successful command.
fn printed(place: &Path, line: &str) -> String {
    let output = run(place, line);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The files of a directory with their contents.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entry = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    std::fs::read_dir(directory).unwrap().map(|found| entry(found.unwrap())).collect()
}

#[test]
fn a_plan_read_from_a_file_is_shown_and_simulated_like_the_original() {
    let place = tempfile::tempdir().unwrap();
    for what in [
        "--fabric icpp98 --scheme path --dests random:12 --seed 5",
        "--fabric icpp98 --routing up-down:root=3 --scheme binomial --order cco",
        "--fabric torus:k=4,n=2,uni --scheme s-torus:form=worm --root 5",
        "--fabric star:4 --processes 4 --placement cyclic --scheme leader:over=k-binomial,k=2",
    ] {
        printed(place.path(), &format!("plan {what} --format json --out plan.json"));
        let read = printed(place.path(), "sim --plan plan.json");
        assert_eq!(read, printed(place.path(), &format!("sim {what}")), "{what}");
        let long = printed(place.path(), &format!("sim {what} --message 384"));
        let what = format!("{what} --packets 3");
        printed(place.path(), &format!("plan {what} --format json --out plan.json"));
        assert_eq!(printed(place.path(), "sim --plan plan.json"), long, "{what}");
        for format in ["tree", "table", "json", "dot", "svg"] {
            let shown = printed(place.path(), &format!("plan --plan plan.json --format {format}"));
            assert_eq!(shown, printed(place.path(), &format!("plan {what} --format {format}")), "{what}");
        }
    }
}

#[test]
fn a_fabric_read_from_a_file_gives_the_same_plans() {
    let place = tempfile::tempdir().unwrap();
    for (fabric, scheme) in
        [("icpp98", "tree-worm"), ("torus:k=3,n=2,uni", "u-torus"), ("fat-tree:k=4", "path")]
    {
        let plan = printed(place.path(), &format!("plan --fabric {fabric} --scheme {scheme}"));
        for format in ["toml", "graphml"] {
            printed(place.path(), &format!("fabric --fabric {fabric} --format {format} --out a.{format}"));
            let read = printed(place.path(), &format!("plan --fabric a.{format} --scheme {scheme}"));
            assert_eq!(read, plan, "{fabric} as {format}");
        }
    }
}

/// The command line that repeats the run of a document.
fn command_line(document: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let mut line = format!("sim --format json --fabric {}", text(&document["fabric"]));
    let mut option = |name: &str, value: &Value| {
        if !value.is_null() {
            line += &format!(" --{name} {}", text(value));
        }
    };
    for name in ["routing", "offload", "seed"] {
        option(name, &document[name]);
    }
    option("message", &document["message_flits"]);
    if document["plan"].is_null() {
        for name in ["scheme", "order", "root"] {
            option(name, &document[name]);
        }
        option("dests", &document["destinations"]);
        option("processes", &document["placement"]["processes"]);
        option("placement", &document["placement"]["arrangement"]);
    }
    option("plan", &document["plan"]);
    for (key, value) in document["parameters"].as_object().unwrap() {
        line += &format!(" --set {key}={}", text(value));
    }
    line
}

#[test]
fn a_run_repeated_from_its_document_is_the_same() {
    let place = tempfile::tempdir().unwrap();
    printed(place.path(), "plan --fabric star:9 --scheme binomial --format json --out plan.json");
    for what in [
        "--fabric icpp98 --scheme k-binomial --order cco --offload nic --dests random:12 --seed 5 --message 700",
        "--fabric irregular:switches=12,ports=8,hosts=48,connectivity=1 --scheme separate --order given --dests 9,2,30-47
         --seed 8 --set adaptive=random --set cycle_ns=2.5 --set host_overhead=0 --set nic_send_overhead=3",
        "--fabric torus:k=4,n=2 --routing dimension-order:channels=none --scheme mu-torus:r=2 --root 3 --offload assisted",
        "--fabric star:4 --processes 3 --placement cyclic --scheme leader:over=serial,local=direct",
        "--plan plan.json --message 300 --set cycles_max=999999",
    ] {
        let first = printed(place.path(), &format!("sim {what} --format json"));
        let again = command_line(&serde_json::from_str(&first).unwrap());
        assert_eq!(printed(place.path(), &again), first, "{again}");
    }
}

#[test]
fn a_page_replaces_no_file_that_it_is_made_of() {
    let place = tempfile::tempdir().unwrap();
    let in_place = |line: &str| printed(place.path(), line);
    in_place("fabric --fabric star:9 --format toml --out star.toml");
    in_place("plan --fabric star.toml --scheme binomial --format json --out plan.json");
    in_place("plan --fabric star:4 --scheme binomial --format json --out other.json");
    in_place("sim --plan plan.json --format json --out run.json");
    std::fs::copy(place.path().join("plan.json"), place.path().join("plan")).unwrap();
    in_place("sim --plan plan --format json --out run-of-plan.json");
    let before = contents(place.path());
    for (line, why) in [
        ("report run.json plan.json", "the page would replace plan.json"),
        ("report run-of-plan.json plan", "the page would replace plan"),
        ("report plan.json star.toml", "the page would replace star.toml"),
        ("report run.json other.json", "other.json: the page, which is HTML, would replace it"),
    ] {
        let output = run(place.path(), line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(why), "{line}: {error}");
    }
    assert_eq!(contents(place.path()), before);
    in_place("report run.json page.html");
}

#[test]
fn a_hyphen_is_standard_output_and_no_file() {
    let place = tempfile::tempdir().unwrap();
    let in_place = |line: &str| printed(place.path(), line);
    for line in [
        "plan --fabric star:9 --scheme binomial --format svg",
        "fabric --fabric star:9 --format toml",
        "sim --fabric star:9 --scheme binomial",
        "sim --fabric star:9 --scheme binomial --load 0.01 --degree 3",
    ] {
        assert_eq!(in_place(&format!("{line} --out -")), in_place(line), "{line}");
    }
    let sim = "sim --fabric star:9 --scheme binomial";
    let trace = run(place.path(), &format!("{sim} --trace - --out figures")).stdout;
    in_place(&format!("{sim} --trace trace"));
    let files = contents(place.path());
    assert_eq!(files.keys().collect::<Vec<_>>(), ["figures", "trace"]);
    assert!(trace == files["trace"] && files["figures"] == in_place(sim).as_bytes());

    let output = run(place.path(), "report --fabric star:9 --scheme binomial -");
    assert!(output.status.success() && output.stdout.starts_with(b"<!doctype html>"));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let network = in_place("tune --loopback 4 --messages 10 --sizes 64,1K --out -");
    assert!(network.contains("measured by treecast tune"), "{network}");
    let bench = in_place("bench --loopback 2 --messages 1 --rounds 1 --sizes 64 --format json --out -");
    assert!(serde_json::from_str::<Value>(&bench).is_ok(), "{bench}");
    assert!(contents(place.path()) == files);
    in_place("plan --fabric star:9 --scheme binomial --out ./-");
    assert!(place.path().join("-").exists());
}

#[test]
fn studies_are_the_same_on_any_number_of_threads() {
    let place = tempfile::tempdir().unwrap();
    let results = [1, 2].map(|jobs| {
        let out = place.path().join("out");
        let text =
            printed(place.path(), &format!("paper run icpp98 fig6 ours-k --quick --jobs {jobs} --out out"));
        let files = contents(&out);
        std::fs::remove_dir_all(out).unwrap();
        (text, files)
    });
    assert_eq!(results[0].0, results[1].0);
    let names: Vec<&str> = results[0].1.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "fig6.csv",
            "fig6.html",
            "fig6.parquet",
            "fig6.svg",
            "icpp98.html",
            "ours-k.csv",
            "ours-k.html",
            "ours-k.parquet",
            "ours-k.svg"
        ]
    );
    for (name, bytes) in &results[0].1 {
        assert!(results[1].1[name] == *bytes, "{name} differs");
    }
}

#[test]
fn a_custom_study_runs_into_a_directory_of_its_name() {
    let place = tempfile::tempdir().unwrap();
    let text = printed(place.path(), &format!("paper run {FIXTURES}/study"));
    assert!(text.contains("Every run: out/small/latency.csv"), "{text}");
    assert_eq!(contents(&place.path().join("out/small")).len(), 4);
}

#[test]
fn a_study_without_figures_does_not_run() {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("mine")).unwrap();
    let study = "name = \"mine\"\ntitle = \"Mine\"\nsource = \"ours\"\nsummary = \"Nothing yet.\"\n";
    std::fs::write(place.path().join("mine/study.toml"), study).unwrap();
    let output = run(place.path(), "paper run mine");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the study mine has no figures"), "{output:?}");
    assert!(!place.path().join("out").exists());
}

#[test]
fn a_variable_that_names_no_directory_for_temporary_files_is_named() {
    let place = tempfile::tempdir().unwrap();
    let mut command = treecast(place.path());
    command.args(["tune", "--loopback", "4"]).env("TMPDIR", "/no/such");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in /no/such: set TMPDIR"), "{output:?}");
}

#[test]
fn a_failed_write_leaves_no_file() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("file"), "kept").unwrap();
    std::fs::create_dir(place.path().join("directory")).unwrap();
    for line in [
        "paper run icpp98 fig6 --quick --out file",
        "paper run icpp98 fig6 --quick --out file/out",
        "plan --fabric star:4 --scheme binomial --out directory",
        "sim --fabric star:4 --scheme binomial --out file/run.json",
        "fabric --fabric star:4 --out nowhere/fabric.toml",
    ] {
        let output = run(place.path(), line);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {stderr}");
        assert!(stderr.contains("could not be written") && stderr.lines().count() == 1, "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let mut entries: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|found| found.unwrap().file_name()).collect();
    entries.sort();
    assert_eq!(entries, ["directory", "file"]);
    assert!(contents(&place.path().join("directory")).is_empty());
    assert_eq!(std::fs::read(place.path().join("file")).unwrap(), b"kept");
}

#[test]
fn invalid_input_writes_no_file() {
    let place = tempfile::tempdir().unwrap();
    for line in [
        "paper run icpp98 fig6 fig66",
        "paper run icpp98 fig6 --jobs 0",
        "plan --fabric star:4 --scheme u-torus --out plan.txt",
        "plan --fabric star:3000 --scheme binomial --format svg --out plan.svg",
        "sim --fabric star:4 --scheme binomial --set buffer_flits=1 --out run.json",
    ] {
        assert_eq!(run(place.path(), line).status.code(), Some(2), "{line}");
        assert!(contents(place.path()).is_empty(), "{line}");
    }
}

#[test]
fn a_killed_study_leaves_complete_files_only() {
    let place = tempfile::tempdir().unwrap();
    let mut command = treecast(place.path());
    command.args(["paper", "run", &format!("{FIXTURES}/long-study"), "--jobs", "1", "--out", "out"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let out = place.path().join("out");
    let started = Instant::now();
    // The page is the last file of the first figure; the second figure would take long.
    while !out.join("fig1.html").exists() && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let files = contents(&out);
    let mut names: Vec<&str> = files.keys().map(String::as_str).collect();
    names.retain(|name| !name.ends_with(".journal"));
    assert_eq!(names, ["fig1.csv", "fig1.html", "fig1.parquet", "fig1.svg"]);
    assert_eq!(String::from_utf8_lossy(&files["fig1.csv"]).lines().count(), 1 + 3);
    assert!(files["fig1.html"].trim_ascii_end().ends_with(b"</html>"));
    assert!(files["fig1.parquet"].ends_with(b"PAR1"));
    assert!(files["fig1.svg"].trim_ascii_end().ends_with(b"</svg>"));
}

/// Starts a study in `out`, and kills it when the journal of its second figure has some lines;
/// returns their number.
fn interrupted(place: &Path, line: &str) -> usize {
    let mut command = treecast(place);
    command.args(line.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let journal = place.join("out/fig8.journal");
    let started = Instant::now();
    let lines = || std::fs::read_to_string(&journal).unwrap_or_default().matches('\n').count();
    while lines() < 100 && started.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines() - 1
}

#[test]
fn a_killed_study_resumes_where_it_stopped() {
    let place = tempfile::tempdir().unwrap();
    let line = "paper run icpp98 fig7 fig8 --quick --jobs 2 --out out";
    let text = printed(place.path(), line);
    let out = place.path().join("out");
    let files = contents(&out);
    assert!(files.keys().all(|name| !name.ends_with(".journal")));
    std::fs::remove_dir_all(&out).unwrap();

    let done = interrupted(place.path(), line);
    assert!((99..320).contains(&done), "{done}");
    // An incomplete line, as after a power failure.
    let mut journal = std::fs::OpenOptions::new().append(true).open(out.join("fig8.journal")).unwrap();
    std::io::Write::write_all(&mut journal, b"{\"run\":\"0123").unwrap();
    let output = run(place.path(), line);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!(
            "treecast: took 240 of 240 runs from out/fig7.journal\n\
             treecast: took {done} of 320 runs from out/fig8.journal\n"
        )
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
    assert!(contents(&out) == files);

    interrupted(place.path(), line);
    let output = run(place.path(), &format!("{line} --fresh"));
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(contents(&out) == files);
}

#[test]
fn a_file_is_replaced_and_a_device_is_written() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("real.txt"), "old").unwrap();
    std::os::unix::fs::symlink("real.txt", place.path().join("link.txt")).unwrap();
    let plan = "plan --fabric star:4 --scheme binomial";
    let text = printed(place.path(), plan);
    assert_eq!(printed(place.path(), &format!("{plan} --out link.txt")), "");
    assert_eq!(std::fs::read_to_string(place.path().join("real.txt")).unwrap(), text);
    assert!(place.path().join("link.txt").is_symlink());
    assert_eq!(printed(place.path(), &format!("{plan} --out /dev/stdout")), text);
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let place = tempfile::tempdir().unwrap();
    for line in ["plan --fabric star:9999 --scheme binomial --format json", "sim --help"] {
        let mut command = treecast(place.path());
        let mut child =
            command.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line}");
    }
}

#[test]
fn control_characters_in_input_are_escaped() {
    let place = tempfile::tempdir().unwrap();
    let stderr = |arguments: &[&OsStr]| {
        let output = treecast(place.path()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let scheme = [OsStr::new("plan"), OsStr::new("--scheme"), OsStr::new("bino\u{1b}[31m\nmial")];
    assert_eq!(
        stderr(&scheme),
        "treecast: unknown scheme 'bino\\u{1b}[31m\\nmial': did you mean binomial, k-binomial?\n"
    );
    let bytes = [OsStr::new("plan"), OsStr::new("--scheme"), OsStr::from_bytes(b"bin\xff")];
    assert_eq!(stderr(&bytes), "treecast: an argument is not valid UTF-8\n");
}

#[test]
fn an_invalid_testbed_is_named_with_its_file() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("mine");
    std::fs::create_dir(&directory).unwrap();
    let study = "name = 'mine'\ntitle = 'T'\nsource = 'ours'\nsummary = 'S'\n[defaults]\ntestbed = 'lab'\n\
                 fabric = 'star:4'\nmessage = 64\ndestinations = 3";
    let figure = "title = 'L'\nquestion = 'Q'\n[x]\nvary = 'message'\nlabel = 'bytes'\nvalues = [64]\n\
                  [[series]]\nname = 'a'\ndescription = 'D'\nscheme = 'binomial'";
    std::fs::write(directory.join("study.toml"), study).unwrap();
    std::fs::write(directory.join("latency.toml"), figure).unwrap();
    let stderr = || {
        let output = run(place.path(), "paper run mine latency");
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        stderr(),
        "treecast: mine/study.toml:6: invalid value testbed=lab: expected the name of a testbed file, and \
         testbed-lab.toml does not exist\n"
    );
    let testbed = directory.join("testbed-lab.toml");
    std::fs::create_dir(&testbed).unwrap();
    assert!(stderr().starts_with("treecast: mine/testbed-lab.toml could not be read: "));
    std::fs::remove_dir(&testbed).unwrap();
    for (bytes, said) in [
        (&b""[..], ":1: missing field `model`"),
        (b"\xff", " could not be read: stream did not contain valid UTF-8"),
        (b"{]", ":1: invalid key-value pair, expected key"),
        (b"model = 'myrnet'", ":1: unknown model 'myrnet': did you mean myrinet?"),
        (
            b"model = 'sci'\n[set]\nlink_mb_per_s = 0",
            ":3: invalid value link_mb_per_s=0: expected a number of MB/s from 1",
        ),
    ] {
        std::fs::write(&testbed, bytes).unwrap();
        assert_eq!(stderr(), format!("treecast: mine/testbed-lab.toml{said}\n"));
    }
}

#[test]
fn destinations_are_the_hosts_of_a_slurm_job_even_if_their_names_are_addresses_or_numbers() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("lab.inventory"), "127.0.0.[1-3] r0\n7 r0\n").unwrap();
    let line = "plan --fabric lab.inventory --scheme separate --root 127.0.0.1 --dests slurm";
    let planned = |hosts: &str| {
        let mut command = treecast(place.path());
        let output = command.args(line.split(' ')).env("SLURM_JOB_NODELIST", hosts).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(planned("127.0.0.[1-3]").contains("step 2: 127.0.0.3"), "{}", planned("127.0.0.[1-3]"));
    assert!(planned("7").contains("step 1: 7"), "{}", planned("7"));
    assert!(planned("n[1-").starts_with("treecast: SLURM_JOB_NODELIST: 'n[1-' is not a hostlist"));
}
