# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, a header with the text of INPUT as the constant NAME: cmake -DINPUT= -DOUTPUT= -DNAME= -P embed.cmake.
# A literal may be limited to 64 KiB by a compiler, so the text comes in pieces that the compiler joins.
file(READ ${INPUT} text)
string(LENGTH "${text}" length)
set(pieces "")
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND pieces "R\"TEXT(${piece})TEXT\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE ${OUTPUT} "// Made from ${INPUT}; change that.\n#pragma once\n\nnamespace weightfs::bench {\n\n"
  "inline constexpr const char* ${NAME} =\n${pieces};\n\n}  // namespace weightfs::bench\n")
