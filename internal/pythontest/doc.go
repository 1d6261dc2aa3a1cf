// Package pythontest runs Python programs for tests. A program reads orders as lines of
// JSON on its standard input, and answers with lines on its standard output. The program
// and its test define the orders and answers.
//
// The interpreter is $OMNIBUS_PYTHON, which may have packages that the system's
// interpreter lacks, or else python3. Without an interpreter a test is skipped.
package pythontest
