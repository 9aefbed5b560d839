// Package drivertest proves the laws of package driver for a driver.
package drivertest
