from cotune import main

main()
