// Package docs tests the pages that users read, README.md and those in docs: every Go block
// is compiled and run, every shell block is run or says why not, and every link leads
// somewhere.
//
// A Go block is a program, declarations with a test, or the body of a function returning an
// error. Such a body may use the names of testdata/blocks, and is run on an embedded
// server. Go blocks are gofmt-ed.
//
// A shell block is run in the root of the repository. A block that needs the network, or
// never ends, has a comment before it:
//
//	<!-- not run: needs Docker -->
package docs
