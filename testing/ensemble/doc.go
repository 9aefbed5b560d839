// Package ensemble tests locks on ensembles of real ZooKeeper servers whose members are
// partitioned, killed and restarted, and compares the embedded server's ensembles with
// them. There are only tests here.
package ensemble
