// Package pythontest has tests run Python beside them: programs that are told what to
// do by lines of JSON on their standard input, and answer with lines on their standard
// output. What is told and answered is for the program and its test.
//
// The interpreter is $OMNIBUS_PYTHON, which may have packages that the system's has
// not, or else python3. Without one a test is skipped.
package pythontest
