# The Parquet plugin, libcotune_parquet.so beside the program: opened at run time when a data file is Parquet. Apache Arrow's C++
# libraries and headers come from the PyPI wheel of pyarrow (scripts/install-dependencies); Debian 12 has no package of them. The
# wheel is built with the C++ ABI of current compilers, and what crosses the plugin's border is our own classes.
option(COTUNE_PARQUET "Build the Parquet plugin where Apache Arrow's libraries are there" ON)
set(COTUNE_ARROW "${CMAKE_SOURCE_DIR}/.deps/arrow/pyarrow" CACHE PATH "Folder that holds the libraries of the pyarrow package")

function(cotune_parquet_plugin)
  file(GLOB arrow_libraries ${COTUNE_ARROW}/libarrow.so.* ${COTUNE_ARROW}/libparquet.so.*)
  list(LENGTH arrow_libraries count)
  if(NOT count EQUAL 2 OR NOT EXISTS ${COTUNE_ARROW}/include/parquet/arrow/reader.h)
    message(STATUS "Parquet plugin: not built, ${COTUNE_ARROW} lacks Arrow's libraries: scripts/install-dependencies installs them")
    return()
  endif()
  message(STATUS "Parquet plugin: built as libcotune_parquet.so")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/parquet/*.cc)
  add_library(cotune_parquet MODULE ${sources} ${CMAKE_SOURCE_DIR}/src/data/records/unread_fields.cc)
  target_include_directories(cotune_parquet PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(cotune_parquet SYSTEM PRIVATE ${COTUNE_ARROW}/include)
  target_link_libraries(cotune_parquet PRIVATE fmt::fmt nlohmann_json::nlohmann_json ${arrow_libraries})
  target_link_options(cotune_parquet PRIVATE -Wl,--allow-shlib-undefined)
  set_target_properties(cotune_parquet PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} BUILD_RPATH "${COTUNE_ARROW}")
  add_dependencies(cotune_data cotune_parquet)  # whoever builds a program that reads data gets it
endfunction()
