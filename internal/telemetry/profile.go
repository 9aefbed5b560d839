package telemetry

// This file has the profiles of held locks and waits.

import (
	"runtime/pprof"
	"sync"
)

// profiles are the profiles of the process: the stacks of the holders and the waiters.
var profiles = sync.OnceValue(func() struct{ held, waiting *pprof.Profile } {
	return struct{ held, waiting *pprof.Profile }{profile("lockpool.held"), profile("lockpool.waiting")}
})

// profile returns the profile of the name, perhaps created by another version of lockpool
// in the process.
func profile(name string) *pprof.Profile {
	if p := pprof.Lookup(name); p != nil {
		return p
	}
	return pprof.NewProfile(name)
}
