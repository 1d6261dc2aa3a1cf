// Command omnibus runs pipelines whose stages are processes, shows what they
// are doing, and checks and draws the files that describe them.
//
// It exits with 0 when everything went well, 1 when a verb failed (a file was
// refused, or could not be read), and 2 when it was called wrongly; run also
// exits with the code of the command it runs, with 2 when the file cannot be
// run, and with 128 and the number of the second signal that it gets. Submit
// exits with 3 and 4 for requests that were aborted or ran out of time,
// connector get with 3 where there is nothing, and both with 128 and the number
// of the signal that ended them. Results go to standard output; everything else
// goes to standard error.
package main

import "os"

func main() {
	if code, done := asProcess1(); done {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
