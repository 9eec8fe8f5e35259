# The CUDA plugin, libcotune_cuda.so beside the program: opened at run time where an NVIDIA driver is, so that neither the
# build nor the program needs one. It is C++ alone: no CUDA toolkit, no nvcc. It needs torch's CUDA libraries, which the
# wheel holds, and the CUDA headers of scripts/install-dependencies --cuda (or --tests).
option(COTUNE_CUDA "Build the CUDA plugin where its headers are there" ON)

function(cotune_cuda_plugin)
  set(cuda_root ${COTUNE_SITE_PACKAGES}/nvidia/cu13)
  foreach(needed ${cuda_root}/include/cuda_runtime_api.h ${cuda_root}/include/crt/host_defines.h
          ${cuda_root}/lib/libcudart.so.13 ${TORCH_ROOT}/lib/libtorch_cuda.so ${TORCH_ROOT}/lib/libc10_cuda.so)
    if(NOT EXISTS ${needed})
      message(STATUS "CUDA plugin: not built, ${needed} is missing: scripts/install-dependencies --cuda installs it")
      return()
    endif()
  endforeach()
  message(STATUS "CUDA plugin: built as libcotune_cuda.so")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cc)
  add_library(cotune_cuda MODULE ${sources})
  target_include_directories(cotune_cuda PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(cotune_cuda SYSTEM PRIVATE ${cuda_root}/include)
  # --no-as-needed: the plugin brings torch_cuda's kernels whether it calls them by name or not. Both folders are on its
  # path: with torch's alone, another copy of a CUDA library could come from the system.
  target_link_libraries(cotune_cuda PRIVATE cotune_torch -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed
                        -l:libcudart.so.13)
  target_link_directories(cotune_cuda PRIVATE ${cuda_root}/lib)
  set_target_properties(cotune_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} BUILD_RPATH "${TORCH_ROOT}/lib;${cuda_root}/lib")
  add_dependencies(cotune cotune_cuda)  # whoever builds the program gets it
endfunction()
