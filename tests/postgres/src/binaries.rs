//! Finding PostgreSQL's server binaries, and the user that they may run as.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, User};

use crate::local::LocalError;

/// The folder with `initdb` and `postgres`: `POSTGRES_BIN_DIR`, then Debian's folders (newest first), then `PATH`.
pub(crate) fn find() -> Result<PathBuf, LocalError> {
    let complete = |dir: &Path| dir.join("initdb").is_file() && dir.join("postgres").is_file();
    if let Some(dir) = std::env::var_os("POSTGRES_BIN_DIR") {
        let dir = PathBuf::from(dir);
        return if complete(&dir) {
            Ok(dir)
        } else {
            Err(LocalError::NoBinaries(format!("none in {}", dir.display())))
        };
    }
    let mut debian: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some((
                entry.file_name().to_str()?.parse().ok()?,
                entry.path().join("bin"),
            ))
        })
        .collect();
    debian.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    debian
        .into_iter()
        .rev()
        .map(|(_, dir)| dir)
        .chain(std::env::split_paths(&path))
        .find(|dir| complete(dir))
        .ok_or_else(|| {
            LocalError::NoBinaries(
                "no initdb and postgres in /usr/lib/postgresql/*/bin or PATH".into(),
            )
        })
}

/// Whom the server runs as. PostgreSQL refuses root, so root steps down to `postgres`, or `nobody`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunAs(Option<(Uid, Gid)>);

impl RunAs {
    pub(crate) fn allowed() -> Result<Self, LocalError> {
        if !Uid::effective().is_root() {
            return Ok(Self(None));
        }
        ["postgres", "nobody"]
            .into_iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .map(|user| Self(Some((user.uid, user.gid))))
            .ok_or(LocalError::NoUser)
    }

    /// Makes `command` run as that user.
    pub(crate) fn apply(self, command: &mut Command) {
        use std::os::unix::process::CommandExt as _;
        if let Some((uid, gid)) = self.0 {
            command.uid(uid.as_raw()).gid(gid.as_raw());
        }
    }

    /// Gives a file or a folder to that user.
    pub(crate) fn own(self, path: &Path) -> std::io::Result<()> {
        match self.0 {
            Some((uid, gid)) => {
                std::os::unix::fs::chown(path, Some(uid.as_raw()), Some(gid.as_raw()))
            }
            None => Ok(()),
        }
    }

    /// Tells cached files of different users apart.
    pub(crate) fn uid(self) -> u32 {
        self.0
            .map_or_else(|| Uid::effective().as_raw(), |(uid, _)| uid.as_raw())
    }
}
