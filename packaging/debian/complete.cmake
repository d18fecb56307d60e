# SPDX-License-Identifier: Apache-2.0
# CPack runs this script before it builds the packages, with each component in a directory of its own. It adds what
# Debian's policy requires of every package, and compresses what the policy wants compressed.
function(weightfs_compress path)
  execute_process(COMMAND gzip -9nf ${path} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# The date of the changelog is that of the newest release in CHANGELOG.md, so two builds give the same packages.
file(STRINGS ${CPACK_WEIGHTFS_SOURCE}/CHANGELOG.md heads REGEX "^## \\[[0-9]")
list(GET heads 0 head)
string(REGEX REPLACE ".* - " "" date "${head}")
execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C date -uRd ${date} OUTPUT_VARIABLE date
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  set(documents ${root}/usr/share/doc/${package})

  file(COPY ${CPACK_WEIGHTFS_SOURCE}/packaging/debian/copyright DESTINATION ${documents}
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  file(COPY_FILE ${CPACK_WEIGHTFS_SOURCE}/CHANGELOG.md ${documents}/changelog)
  file(REMOVE ${documents}/CHANGELOG.md)
  file(WRITE ${documents}/changelog.Debian
    "weightfs (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
    "  * Release ${CPACK_PACKAGE_VERSION}; changelog.gz has the changes.\n\n"
    " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(CHMOD ${documents}/changelog ${documents}/changelog.Debian
    PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  weightfs_compress(${documents}/changelog)
  weightfs_compress(${documents}/changelog.Debian)

  file(GLOB_RECURSE pages ${root}/usr/share/man/*.[1-9])
  foreach(page IN LISTS pages)
    if(NOT IS_SYMLINK ${page})
      weightfs_compress(${page})
    endif()
  endforeach()

  set(overrides ${CPACK_WEIGHTFS_SOURCE}/packaging/debian/${component}.lintian-overrides)
  if(EXISTS ${overrides})
    file(MAKE_DIRECTORY ${root}/usr/share/lintian/overrides)
    file(COPY_FILE ${overrides} ${root}/usr/share/lintian/overrides/${package})
  endif()
endforeach()
