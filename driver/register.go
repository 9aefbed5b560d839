package driver

// This file has the registry of drivers.

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

var (
	driversMu sync.RWMutex
	drivers   = map[string]Driver{}
)

// Register makes a driver available by name to lockpool.Open. Drivers call it from an init
// function. Register panics if d is nil or the name is taken.
func Register(name string, d Driver) {
	driversMu.Lock()
	defer driversMu.Unlock()
	if d == nil {
		panic("lockpool: Register driver is nil")
	}
	if _, taken := drivers[name]; taken {
		panic("lockpool: Register called twice for driver " + name)
	}
	drivers[name] = d
}

// Registered returns the driver registered under the name.
func Registered(name string) (Driver, error) {
	driversMu.RLock()
	defer driversMu.RUnlock()
	d, ok := drivers[name]
	if !ok {
		return nil, fmt.Errorf("unknown driver %q (forgotten import of its package?); registered: %q", name, names())
	}
	return d, nil
}

// Drivers returns the names of the registered drivers, sorted.
func Drivers() []string {
	driversMu.RLock()
	defer driversMu.RUnlock()
	return names()
}

func names() []string { return slices.Sorted(maps.Keys(drivers)) }
