package main

func Example() {
	main()
	// Output: 5 characters, in a payload of 2 bytes
}
