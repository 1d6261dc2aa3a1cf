// Command omnibus runs pipelines whose stages are processes, shows what they
// are doing, and checks and draws the files that describe them.
//
// The exit code is 0 after success, 1 after a failure (a file was refused, or
// could not be read), and 2 for a wrong command line. Run also exits with the
// code of the command it runs, with 2 if the file cannot be run, and with 128
// plus the number of the second signal. Submit exits with 3 for an aborted
// request and with 4 for one past its deadline, connector get with 3 if there is
// no value, and both with 128 plus the number of the signal that ended them.
// Results go to standard output, all other text to standard error.
package main

import "os"

func main() {
	if code, done := asProcess1(); done {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
