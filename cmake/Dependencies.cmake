# Libraries from the distribution (scripts/install-dependencies names every package) and libtorch from its wheel.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
if(COTUNE_TORCH)
  pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET libedit)  # lines of a chat
endif()
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# libtorch, as unpacked from the PyPI wheel by scripts/install-dependencies. Linked by name, not through
# find_package(Torch), which would demand a CUDA toolkit.
set(COTUNE_SITE_PACKAGES "${CMAKE_SOURCE_DIR}/.deps/python" CACHE PATH "Folder that holds the torch package")
if(COTUNE_TORCH)
  set(TORCH_ROOT ${COTUNE_SITE_PACKAGES}/torch)
  if(NOT EXISTS ${TORCH_ROOT}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "no libtorch in ${TORCH_ROOT}: run scripts/install-dependencies first")
  endif()
  # The wheel carries headers of other libraries as well, among them a newer fmt than the one we link. Only torch's own
  # folders are offered to the compiler.
  set(TORCH_HEADERS ${CMAKE_BINARY_DIR}/torch-headers)
  file(MAKE_DIRECTORY ${TORCH_HEADERS})
  foreach(folder ATen c10 caffe2 torch)
    file(CREATE_LINK ${TORCH_ROOT}/include/${folder} ${TORCH_HEADERS}/${folder} SYMBOLIC)
  endforeach()
  add_library(cotune_torch INTERFACE)
  target_include_directories(cotune_torch SYSTEM INTERFACE ${TORCH_HEADERS})
  target_link_directories(cotune_torch INTERFACE ${TORCH_ROOT}/lib)
  target_link_libraries(cotune_torch INTERFACE -Wl,--no-as-needed torch_cpu c10 -Wl,--as-needed)
  target_link_options(cotune_torch INTERFACE -Wl,--disable-new-dtags -Wl,--allow-shlib-undefined)
  set(CMAKE_BUILD_RPATH "$ORIGIN;${TORCH_ROOT}/lib")
  # torch carries the one OpenMP runtime of the process; our code uses the same one.
  file(GLOB TORCH_GOMP ${TORCH_ROOT}/lib/libgomp*.so*)
  list(GET TORCH_GOMP 0 COTUNE_GOMP)
endif()
