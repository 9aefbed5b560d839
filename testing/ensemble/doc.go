// Package ensemble tests locks on ensembles of real ZooKeeper servers whose
// members are partitioned, killed and restarted. It contains only tests.
package ensemble
