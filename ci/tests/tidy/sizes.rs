//! A file has one subject; one that is longer has more of them.

use crate::{File, files, none};

/// Lines.
const MOST: usize = 640;

fn too_long(files: &[File]) -> Vec<String> {
    let long = files.iter().filter_map(|file| {
        let lines = file.text.lines().count();
        (lines > MOST).then(|| {
            format!(
                "{}: {lines} lines; at most {MOST}: split it by subject",
                file.path
            )
        })
    });
    long.collect()
}

#[test]
fn tidy_files_have_one_subject() {
    none(too_long(&files(&[".rs", ".sql", ".toml", ".md"])));
}

#[test]
fn tidy_a_long_file_is_found() {
    let file = |lines| File {
        path: "a.rs".to_owned(),
        text: "x\n".repeat(lines),
    };
    assert_eq!(too_long(&[file(MOST)]).len(), 0);
    assert_eq!(too_long(&[file(MOST + 1)]).len(), 1);
}
