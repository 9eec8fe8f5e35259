# The CUDA plugin, libcotune_cuda.so beside the program: opened at run time where an NVIDIA driver is, so that neither the
# build nor the program needs one. Its kernels are compiled by PyPI's nvcc (scripts/install-dependencies --cuda or --tests),
# by commands of our own: CMake's CUDA language would look for a whole toolkit. The rest is C++ against torch's CUDA
# libraries, which the wheel holds.
option(COTUNE_CUDA "Build the CUDA plugin where its compiler and headers are there" ON)

# Object files of src/cuda/*.cu, machine code for Ampere (A100) and Hopper and what later GPUs translate at load.
function(cotune_cuda_objects result root)
  set(objects)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cu)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${root}/bin/nvcc -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -O3 -DNDEBUG
              -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
              -Xcompiler=-fPIC,-fvisibility=hidden -Werror=all-warnings -I${CMAKE_SOURCE_DIR}/src
              -MD -MT ${object} -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d
      COMMENT "Building CUDA object ${name}.o" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  set(${result} ${objects} PARENT_SCOPE)
endfunction()

function(cotune_cuda_plugin)
  set(cuda_root ${COTUNE_SITE_PACKAGES}/nvidia/cu13)
  foreach(needed ${cuda_root}/bin/nvcc ${cuda_root}/nvvm/bin/cicc ${cuda_root}/include/cuda_runtime_api.h
          ${cuda_root}/include/crt/host_defines.h ${cuda_root}/lib/libcudart.so.13 ${TORCH_ROOT}/lib/libtorch_cuda.so
          ${TORCH_ROOT}/lib/libc10_cuda.so)
    if(NOT EXISTS ${needed})
      message(STATUS "CUDA plugin: not built, ${needed} is missing: scripts/install-dependencies --cuda installs it")
      return()
    endif()
  endforeach()
  message(STATUS "CUDA plugin: built as libcotune_cuda.so")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cuda/*.cc)
  cotune_cuda_objects(objects ${cuda_root})
  add_library(cotune_cuda MODULE ${sources} ${objects})
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
