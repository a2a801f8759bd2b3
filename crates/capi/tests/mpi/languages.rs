//! Broadcasts from Fortran's three bindings, and from Python.

use std::process::Command;

use treecast_lab::LabSettings;

use super::programs::{
    ALL, Built, MPICH_TRIES, Mpi, Ran, repository, run, run_in, run_line, skip, start, target, text, treecast,
};

/// Compiles a program of `mpi/tests`, and its part in C if it has one, for each binding of Fortran,
/// and runs it with each MPI of Debian.
fn compare_bindings(source: &str, part_in_c: Option<&str>, is_right: impl Fn(&Ran) -> bool) {
    for mpi in ALL {
        let compiler = mpi.tool("mpif90");
        if Command::new(&compiler).arg("-v").output().is_err() {
            skip(&format!("no {compiler}, so no program in Fortran broadcasts"));
            continue;
        }
        let Some(lab) = start(mpi, &LabSettings::new(2)) else { return };
        let directory = tempfile::tempdir().unwrap();
        let object = part_in_c.map(|part| {
            let object = directory.path().join("part.o");
            mpi.compile(&["-c"], &[part], &object);
            object
        });
        for (number, binding) in (1..).zip(["mpif.h", "mpi", "mpi_f08"]) {
            let program = directory.path().join(binding);
            let mut compile = Command::new(&compiler);
            compile.args(["-O1", "-Wall", "-Werror"]).arg(format!("-DBINDING={number}"));
            if mpi == Mpi::OpenMpi {
                compile.arg("-DEXTENSION");
            }
            compile.arg("-o").arg(&program).arg(repository().join("mpi/tests").join(source));
            run(compile.args(&object));
            let mut tries = if mpi == Mpi::Mpich { MPICH_TRIES } else { 1 };
            loop {
                let ran = run_in(&lab, mpi, 1, &[], &program, &[]);
                let (written, status) = (text(&ran.output), ran.output.status);
                assert!(!written.contains("wrong: "), "{mpi:?}, {binding}: {written}");
                // MPICH 4.0 may hang in `MPI_Finalize`, without the shim too.
                if is_right(&ran) && (status.success() || mpi == Mpi::Mpich) {
                    break;
                }
                tries -= 1;
                assert!(tries > 0, "{mpi:?}, {binding}: {status}: {written}");
            }
        }
    }
}

#[test]
fn each_binding_of_fortran_broadcasts() {
    compare_bindings("bindings.F90", None, |ran| {
        let written = text(&ran.output);
        let lines = [
            "fortran: 6 broadcasts",
            " 6 taken, ",
            " allgathers: 4 taken, ",
            " reduces: 4 taken, ",
            " allreduces: 4 taken, ",
            " barriers: 2 taken; ",
        ];
        lines.iter().all(|line| written.contains(line))
    });
}

/// Each MPI and binding reaches the functions of C by different names.
#[test]
fn requests_of_fortran_are_completed_in_every_way() {
    compare_bindings("requests.F90", None, |ran| {
        let written = text(&ran.output);
        ["fortran: 48 broadcasts", " 22 taken, nonblocking, ", " 24 taken, persistent, "]
            .iter()
            .all(|line| written.contains(line))
    });
}

#[test]
fn requests_of_one_language_are_completed_in_the_other() {
    compare_bindings("crossing.F90", Some("crossing.c"), |ran| {
        let written = text(&ran.output);
        ["crossing: 24 broadcasts", " 24 taken, nonblocking, "].iter().all(|line| written.contains(line))
    });
}

/// By `treecast mpi`, which finds the shim; the environment variable chooses the MPI of mpi4py.
///
/// mpi4py calls the functions for large counts that the shim has, although Open MPI lacks them.
#[test]
fn mpi4py_broadcasts_with_each_mpi() {
    let python = target().join("python/bin/python");
    let treecast = treecast();
    if !python.exists() || !treecast.exists() {
        return skip("no mpi4py or no treecast, so no program in Python broadcasts with the shim");
    }
    let open_mpi = target().join("openmpi/lib/libmpi.so.40").display().to_string();
    let script = repository().join("mpi/tests/broadcasts.py").display().to_string();
    for (mpi, environment) in
        [(Mpi::OpenMpi5, &[("MPI4PY_LIBMPI", open_mpi.as_str())][..]), (Mpi::Mpich5, &[])]
    {
        let Some(lab) = start(mpi, &LabSettings::new(3)) else { continue };
        let variables: Vec<String> =
            environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let line = format!(
            "{} TREECAST_MPI_CHOICE=always exec {} mpi --library {} --report -- {}",
            variables.join(" "),
            treecast.display(),
            Built::get().shim(mpi).parent().unwrap().display(),
            mpi.launcher(3, 1, environment)
        );
        let Ran { output, taken, .. } = run_line(&lab, &line, &python, &[&script]);
        let written = text(&output);
        assert!(output.status.success(), "{mpi:?}: {}: {written}", output.status);
        assert!(taken > 0 && written.contains("mpi4py: 160 broadcasts"), "{mpi:?}: {written}");
        assert!(written.contains(" taken, nonblocking, "), "{mpi:?}: {written}");
    }
}
