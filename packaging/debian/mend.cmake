# SPDX-License-Identifier: Apache-2.0
# CPack runs this script with the packages that it built. The script corrects what CPack does wrong in them: it counts
# the target of each symbolic link in Installed-Size, and adds maintainer scripts that call ldconfig also where the
# trigger does.
foreach(package IN LISTS CPACK_PACKAGE_FILES)
  set(tree ${CPACK_TEMPORARY_DIRECTORY}/mend)
  file(REMOVE_RECURSE ${tree})
  execute_process(COMMAND dpkg-deb --raw-extract ${package} ${tree} COMMAND_ERROR_IS_FATAL ANY)
  # As dpkg-gencontrol(1) does: files in units of 1 KiB, one unit for everything else.
  file(GLOB_RECURSE paths LIST_DIRECTORIES true ${tree}/*)
  list(FILTER paths EXCLUDE REGEX "^${tree}/DEBIAN(/|$)")
  set(size 0)
  foreach(path IN LISTS paths)
    set(bytes 1)
    if(NOT IS_SYMLINK ${path} AND NOT IS_DIRECTORY ${path})
      file(SIZE ${path} bytes)
    endif()
    math(EXPR size "${size} + (${bytes} + 1023) / 1024")
  endforeach()
  file(READ ${tree}/DEBIAN/control control)
  string(REGEX REPLACE "\nInstalled-Size: [0-9]+\n" "\nInstalled-Size: ${size}\n" control "${control}")
  file(WRITE ${tree}/DEBIAN/control "${control}")
  if(EXISTS ${tree}/DEBIAN/triggers)
    file(REMOVE ${tree}/DEBIAN/postinst ${tree}/DEBIAN/postrm)
  endif()
  execute_process(COMMAND dpkg-deb --build --root-owner-group -Z${CPACK_DEBIAN_COMPRESSION_TYPE} ${tree} ${package}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE_RECURSE ${tree})
endforeach()
