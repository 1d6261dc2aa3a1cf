package main

func Example() {
	main()
	// The short request is answered when its stream ends, the long one when a
	// batch is full, and its last words at its end.

	// Output:
	// short: hello: 5 letters (batch of 1)
	// long: this: 4 letters (batch of 3)
	// long: one: 3 letters (batch of 3)
	// long: has: 3 letters (batch of 3)
	// long: four: 4 letters (batch of 2)
	// long: more: 4 letters (batch of 2)
}
