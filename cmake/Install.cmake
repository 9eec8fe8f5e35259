# What `cmake --install` and cpack put where. In PREFIX/lib/cotune stand the program, its plugins and the libraries that no
# distribution has (libtorch, Arrow), in PREFIX/bin a link to the program. In a Python wheel (packaging/build_backend.py) the
# package folder `cotune` takes the place of lib/cotune, and torch and pyarrow are packages beside it.
include(GNUInstallDirs)

if(NOT COTUNE_TORCH OR COTUNE_FUZZ)
  return()
endif()

if(SKBUILD)
  set(program_folder cotune)
  set(shared_folder ${SKBUILD_DATA_DIR}/share)
else()
  set(program_folder ${CMAKE_INSTALL_LIBDIR}/cotune)
  set(shared_folder ${CMAKE_INSTALL_DATADIR})
endif()

set(beside "$ORIGIN;$ORIGIN/../torch/lib")
set_target_properties(cotune cotune_commands PROPERTIES INSTALL_RPATH "${beside}")
install(TARGETS cotune cotune_commands RUNTIME_DEPENDENCY_SET libraries RUNTIME DESTINATION ${program_folder} COMPONENT program
        LIBRARY DESTINATION ${program_folder} COMPONENT program)
if(TARGET cotune_parquet)
  set_target_properties(cotune_parquet PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../pyarrow")
  install(TARGETS cotune_parquet LIBRARY DESTINATION ${program_folder} COMPONENT program)
endif()

# Manual pages and completions, written by the program itself.
install(CODE "
  set(pages \"${CMAKE_BINARY_DIR}/pages\")
  file(REMOVE_RECURSE \"\${pages}\")
  file(MAKE_DIRECTORY \"\${pages}/completions\")
  execute_process(COMMAND \"$<TARGET_FILE:cotune>\" manual --output \"\${pages}/man1\" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell_file bash:cotune zsh:_cotune fish:cotune.fish)
    string(REPLACE : \";\" shell_file \"\${shell_file}\")
    list(GET shell_file 0 shell)
    list(GET shell_file 1 file)
    execute_process(COMMAND \"$<TARGET_FILE:cotune>\" completion \${shell} OUTPUT_FILE \"\${pages}/completions/\${file}\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()" COMPONENT program)
install(DIRECTORY ${CMAKE_BINARY_DIR}/pages/man1 DESTINATION ${shared_folder}/man COMPONENT program)
install(FILES ${CMAKE_BINARY_DIR}/pages/completions/cotune DESTINATION ${shared_folder}/bash-completion/completions COMPONENT program)
install(FILES ${CMAKE_BINARY_DIR}/pages/completions/_cotune DESTINATION ${shared_folder}/zsh/site-functions COMPONENT program)
install(FILES ${CMAKE_BINARY_DIR}/pages/completions/cotune.fish DESTINATION ${shared_folder}/fish/vendor_completions.d COMPONENT program)

if(SKBUILD)
  # The few libraries of the distribution that the program was built with, so that the wheel needs none of its packages.
  install(RUNTIME_DEPENDENCY_SET libraries DESTINATION ${program_folder} COMPONENT program
          PRE_EXCLUDE_REGEXES "^lib(torch|c10|gomp|cudart|cupti|stdc\\+\\+|gcc_s|c|m|dl|pthread|rt|util)[._]" "^ld-linux"
          POST_INCLUDE_REGEXES "^/(usr/)?lib/" POST_EXCLUDE_REGEXES ".*")
  if(TARGET cotune_cuda)
    set_target_properties(cotune_cuda PROPERTIES INSTALL_RPATH "${beside};$ORIGIN/../nvidia/cu13/lib")
    install(TARGETS cotune_cuda LIBRARY DESTINATION ${program_folder} COMPONENT program)
  endif()
  return()
endif()

install(FILES ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so ${COTUNE_GOMP}
              ${COTUNE_SITE_PACKAGES}/nvidia/cu13/lib/libcudart.so.13 ${COTUNE_SITE_PACKAGES}/nvidia/cu13/lib/libcupti.so.13
        DESTINATION ${program_folder} COMPONENT program)
if(TARGET cotune_parquet)
  file(GLOB arrow_libraries ${COTUNE_ARROW}/libarrow.so.* ${COTUNE_ARROW}/libparquet.so.*)
  install(FILES ${arrow_libraries} DESTINATION ${program_folder} COMPONENT program)
endif()
# What the CUDA plugin computes with takes 2.7 GB and stays where it was built (docs/gpu.md): its component is not in the Debian package.
if(TARGET cotune_cuda)
  set_target_properties(cotune_cuda PROPERTIES INSTALL_RPATH "$ORIGIN;${TORCH_ROOT}/lib;${COTUNE_SITE_PACKAGES}/nvidia/cu13/lib")
  install(TARGETS cotune_cuda LIBRARY DESTINATION ${program_folder} COMPONENT cuda)
endif()
install(CODE "
  set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  file(MAKE_DIRECTORY \"\${bin}\")
  file(CREATE_LINK ../${program_folder}/cotune \"\${bin}/cotune\" SYMBOLIC)" COMPONENT program)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(FILES packaging/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
file(GLOB torch_licenses ${COTUNE_SITE_PACKAGES}/torch-*.dist-info/licenses/*)
install(FILES ${torch_licenses} DESTINATION ${CMAKE_INSTALL_DOCDIR}/libtorch COMPONENT program)
install(DIRECTORY docs examples schema DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

# The Debian package: scripts/package deb.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cotune)
# Names ending in .invalid are nobody's (RFC 2606): who gives packages away names himself.
set(COTUNE_PACKAGE_MAINTAINER "The cotune developers <developers@cotune.invalid>" CACHE STRING "Maintainer of the Debian package: Name <address>")
if(NOT COTUNE_PACKAGE_MAINTAINER MATCHES "^[^<>\n]+ <[^<>@ \n]+@[^<>@ \n]+>$")
  message(FATAL_ERROR "COTUNE_PACKAGE_MAINTAINER: is '${COTUNE_PACKAGE_MAINTAINER}'; accepted is what Debian has as a maintainer: Name <address>")
endif()
set(CPACK_PACKAGE_CONTACT "${COTUNE_PACKAGE_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "fine-tune many adapters at once on one shared language model")
set(CPACK_PACKAGE_DESCRIPTION "LoRA, bottleneck and diff-pruning jobs of different ranks, data and lengths share each pass through one
frozen model, yet every job ends as if it had trained alone. Adapters load in PEFT.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL program)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TORCH_ROOT}/lib ${COTUNE_SITE_PACKAGES}/nvidia/cu13/lib ${COTUNE_ARROW})
include(CPack)
