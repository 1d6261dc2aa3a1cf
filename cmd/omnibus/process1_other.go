//go:build !linux

package main

func asProcess1() (code int, done bool) { return 0, false }
