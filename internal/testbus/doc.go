// Package testbus has the pipelines and helpers that tests of package bus and of the packages
// below it share.
package testbus
