# COTUNE_DATE, which manual pages bear, the same wherever and whenever this source is built: SOURCE_DATE_EPOCH where it is set
# (reproducible-builds.org), else the day on which this version was released, as CHANGELOG.md says (`## 0.1.0, 2026-01-31`), else that of
# the commit. Empty where nothing says it.
set(COTUNE_DATE "")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/CHANGELOG.md)
file(STRINGS ${CMAKE_SOURCE_DIR}/CHANGELOG.md released REGEX "^## ${PROJECT_VERSION}, [0-9]+-[0-9]+-[0-9]+$")
if(DEFINED ENV{SOURCE_DATE_EPOCH})
  string(TIMESTAMP COTUNE_DATE "%Y-%m-%d" UTC)  # takes the time from there
elseif(released MATCHES "([0-9]+-[0-9]+-[0-9]+)")
  set(COTUNE_DATE ${CMAKE_MATCH_1})
else()
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env TZ=UTC ${GIT_EXECUTABLE} log -1 --format=%cd --date=format-local:%Y-%m-%d
                    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE COTUNE_DATE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
