// Command omnibus checks and draws the files that describe pipelines, and
// measures the bus beside plain Go.
//
// It exits with 0 when everything went well, 1 when a verb failed (a file was
// refused, or could not be read), and 2 when it was called wrongly. Results go
// to standard output; everything else goes to standard error.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}
