"""The programs of the package: weightfs-io and weightfs-tune."""
