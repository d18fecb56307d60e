# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, a header with the texts of FILES: cmake -DFILES= -DMODULES= -DOUTPUT= -P embed.cmake. NAME.EXTENSION
# becomes the constant kNameText; files in MODULES are also listed in kModules. Compilers may limit a literal to 64 KiB,
# so each text is split into literals that the compiler joins.
cmake_minimum_required(VERSION 3.25)
file(WRITE ${OUTPUT} "// Made by embed.cmake; change the files that it reads.\n#pragma once\n\n#include <utility>\n\n"
  "namespace weightfs::bench {\n\n")
set(modules "")
foreach(input ${FILES})
  get_filename_component(name ${input} NAME_WE)
  string(SUBSTRING ${name} 0 1 first)
  string(TOUPPER ${first} first)
  string(SUBSTRING ${name} 1 -1 rest)
  set(constant k${first}${rest}Text)
  file(READ ${input} text)
  string(LENGTH "${text}" length)
  set(pieces "")
  foreach(at RANGE 0 ${length} 8000)
    string(SUBSTRING "${text}" ${at} 8000 piece)
    string(APPEND pieces "R\"TEXT(${piece})TEXT\"\n")
  endforeach()
  file(APPEND ${OUTPUT} "inline constexpr const char* ${constant} =\n${pieces};\n\n")
  if(name IN_LIST MODULES)
    string(APPEND modules "    {\"${name}\", ${constant}},\n")
  endif()
endforeach()
file(APPEND ${OUTPUT} "inline constexpr std::pair<const char*, const char*> kModules[] = {\n${modules}};\n\n"
  "}  // namespace weightfs::bench\n")
