package telemetry

import (
	"runtime/pprof"
	"sync"
)

// profiles are the profiles of the process: the stacks of the holders and the waiters.
var profiles = sync.OnceValue(func() struct{ held, waiting *pprof.Profile } {
	return struct{ held, waiting *pprof.Profile }{profile("lockpool.held"), profile("lockpool.waiting")}
})

// profile returns the profile of that name, which another version of lockpool in the
// process may have created.
func profile(name string) *pprof.Profile {
	if p := pprof.Lookup(name); p != nil {
		return p
	}
	return pprof.NewProfile(name)
}
