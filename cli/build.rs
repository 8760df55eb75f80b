//! Passes the directory of the built shared objects to the command, which embeds them.
//!
//! With the feature `embed`, the packages of the objects are dependencies. Cargo builds them before
//! the command and writes their cdylibs to `deps`, beside the directory of this script's output.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // PROFILE/build/PACKAGE/out.
    let profile = out.ancestors().nth(3).ok_or("OUT_DIR is too short")?;
    let objects = profile.join("deps");
    let objects = objects.to_str().ok_or("OUT_DIR is not UTF-8")?;
    // The path becomes part of a string of the assembler.
    let quoted = objects.replace('\\', r"\\").replace('"', "\\\"");
    println!("cargo:rustc-env=URXE_OBJECTS={quoted}");
    Ok(())
}
