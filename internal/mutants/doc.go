// Command mutants breaks the code on purpose and checks that a test fails.
//
// A promise that no test defends is only a comment. Each mutant breaks one
// promise with a likely mistake, and names the test that has to fail:
//
//	go run ./internal/mutants            # all of them
//	go run ./internal/mutants -run credit
//	go run ./internal/mutants -part 2/4
//
// The command exits with status 1 when a mutant survives, does not apply, does
// not compile, or when its test does not pass on the unchanged code.
//
// # Mutants
//
// A mutant is one file, list/NAME.txtar. The comment describes the mistake and its
// cost for the user; then come the header lines and the change:
//
//	The reader counts one release twice, so that a payload is overwritten
//	while another stage reads it.
//
//	file: shmstore/lease.go
//	package: ./shmstore
//	test: ^TestReleaseTwice$
//	-- old --
//		if l.released.Swap(true) {
//	-- new --
//		if l.released.Swap(false) {
//
// The old text is whole lines and must occur exactly once in the file. Further
// pairs of old and new change further lines of the same file. An optional
// header `flags:` adds flags for go test, for example `flags: -race -count=5`.
//
// # How it works
//
// The changed copy of the file lies in a temporary folder and reaches the
// compiler by the -overlay flag. The source tree is only read, so an
// interrupted run leaves it unchanged, and two runs do not disturb each
// other. Each test has to pass on the unchanged code first, with one test binary
// for each package. A mutant is caught when the named test fails. A test that
// takes many times as long as on the unchanged code counts as well, and is
// reported as "by timeout": such a test says little about the cause.
package main
