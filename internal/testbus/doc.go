// Package testbus has the pipelines, and what is done with them, that the tests of package bus
// and of the packages below it have in common.
package testbus
