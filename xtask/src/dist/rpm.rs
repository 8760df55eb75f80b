//! RPM packages, by the crate `rpm`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rpm::{
    BuildConfig, CompressionType, Dependency, FileOptions, FileOptionsBuilder, PackageBuilder,
    Timestamp,
};

use super::files;
use super::products::{Products, VERSION};
use super::split::{Needs, Package};

/// The revision of the packages of this version.
const RELEASE: &str = "1";

/// Packs the root of a package. Returns its name in `out`.
pub(super) fn pack(
    package: &Package,
    products: &Products,
    needs: &Needs,
    root: &Path,
    epoch: &str,
    out: &Path,
) -> Result<PathBuf, String> {
    let name = package.rpm_name;
    let failed = |error: rpm::Error| format!("{name}: {error}");
    let architecture = products.architecture();
    let time = epoch
        .parse::<u32>()
        .map_err(|error| format!("{epoch}: {error}"))?;
    let compression = match products.compressed {
        true => CompressionType::Gzip,
        false => CompressionType::None,
    };
    // Readable by rpm 4.14, of Enterprise Linux 8.
    let config = BuildConfig::v4().source_date(time).compression(compression);

    let licence = "MIT OR Apache-2.0";
    let mut builder = PackageBuilder::new(name, VERSION, licence, architecture, package.summary);
    builder
        .using_config(config)
        .release(RELEASE)
        .description(package.description)
        .build_host("localhost");
    let same = format!("{VERSION}-{RELEASE}");
    let programs = format!("urxe({architecture})");
    match package.has_programs() {
        true => {
            builder.provides(Dependency::eq(programs, same));
            for library in &needs.libraries {
                builder.requires(Dependency::any(format!("{library}()(64bit)")));
            }
            for (library, version) in &needs.versions {
                builder.requires(Dependency::any(format!("{library}({version})(64bit)")));
            }
        }
        false => {
            builder.requires(Dependency::eq(programs, same));
        }
    }
    if package.changes_linker() {
        builder
            .post_install_script("/sbin/ldconfig")
            .post_uninstall_script("/sbin/ldconfig")
            .requires(Dependency::any("/sbin/ldconfig"));
    }
    for path in files::below(root)? {
        let installed = Path::new("/").join(path.strip_prefix(root).unwrap_or(&path));
        let destination = installed.to_string_lossy();
        let described = |options: FileOptionsBuilder| {
            options
                .user("root")
                .group("root")
                .modified_at(Timestamp(time))
        };
        let metadata = path
            .symlink_metadata()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let permissions = (metadata.permissions().mode() & 0o777) as u16;
        if metadata.is_symlink() {
            let target = std::fs::read_link(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let target = target.to_string_lossy();
            let link = FileOptions::symlink(destination, target);
            builder.with_symlink(described(link)).map_err(failed)?;
        } else if metadata.is_file() {
            let file = FileOptions::new(destination).permissions(permissions);
            builder.with_file(&path, described(file)).map_err(failed)?;
        } else if installed.iter().any(|part| part == "urxe") {
            // Other directories belong to the system's packages.
            let directory = FileOptions::dir(destination).permissions(permissions);
            builder
                .with_dir_entry(described(directory))
                .map_err(failed)?;
        }
    }
    let built = builder.build().map_err(failed)?;
    let file = PathBuf::from(format!("{name}-{VERSION}-{RELEASE}.{architecture}.rpm"));
    built.write_file(out.join(&file)).map_err(failed)?;
    Ok(file)
}
