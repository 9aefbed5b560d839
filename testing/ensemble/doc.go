// Package ensemble tests locks on ensembles of real ZooKeeper servers whose
// members are cut off from each other, killed and started again. It holds no
// code.
package ensemble
